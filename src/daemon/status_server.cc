#include "daemon/status_server.h"

#include "transport/secret.h"

namespace strata::daemon {
namespace {

constexpr int kUnavailable = 503;
using transport::HttpAnswer;

}  // namespace

StatusServer::StatusServer(uint32_t connections_max)
    : io_("status"),
      network_(io_.loop(), nullptr),
      server_({io_.loop(), &network_, transport::system_entropy()},
              {.connections_max = connections_max}) {}

StatusOr<std::unique_ptr<StatusServer>> StatusServer::start(const HostPort& at,
                                                            uint32_t connections_max) {
  auto made = std::unique_ptr<StatusServer>(new StatusServer(connections_max));
  made->add_pages();
  const std::string host = at.host.find(':') == std::string::npos ? at.host : "[" + at.host + "]";
  const std::string wanted = host + ":" + std::to_string(at.port);
  const auto address = made->server_.listen("tcp:" + wanted);
  if (is_duplicate_key(address.status()))
    return error_in_use("cannot listen for HTTP on " + wanted + "; perhaps another process does");
  STRATA_RETURN_IF_ERROR(address.status());
  made->address_ = shown_address(*address);
  return made;
}

void StatusServer::add_pages() {
  const auto add = [this](const char* path, auto answer_of) {
    server_.handle(path, [=, this]() -> HttpAnswer {
      const StatusSource* const source = source_.load();
      if (source == nullptr) return {.status = kUnavailable, .body = "starting\n"};
      return answer_of(*source);
    });
  };
  add("/healthz", [](const StatusSource& source) -> HttpAnswer {
    const Status health = source.health();
    if (health.ok()) return {.body = "ok\n"};
    return {.status = kUnavailable, .body = cause_and_remedy(health) + "\n"};
  });
  add("/metrics", [](const StatusSource& source) -> HttpAnswer {
    return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = source.metrics()};
  });
  add("/status", [](const StatusSource& source) -> HttpAnswer {
    return {.type = "application/json", .body = source.status_json()};
  });
}

}  // namespace strata::daemon
