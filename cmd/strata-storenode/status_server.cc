#include "status_server.h"

#include "status_text.h"
#include "transport/secret.h"

namespace strata::daemon {
namespace {

constexpr int kUnavailable = 503;
constexpr std::string_view kTcp = "tcp:";

}  // namespace

StatusServer::StatusServer(uint32_t connections_max)
    : io_("status"),
      network_(io_.loop(), nullptr),
      server_({io_.loop(), &network_, transport::system_entropy()},
              {.connections_max = connections_max}) {}

StatusOr<std::unique_ptr<StatusServer>> StatusServer::start(const HttpAddress& at,
                                                            uint32_t connections_max) {
  auto made = std::unique_ptr<StatusServer>(new StatusServer(connections_max));
  made->add_pages();
  const std::string host = at.host.find(':') == std::string::npos ? at.host : "[" + at.host + "]";
  const std::string wanted = host + ":" + std::to_string(at.port);
  const auto address = made->server_.listen(std::string(kTcp) + wanted);
  if (is_duplicate_key(address.status()))
    return error_in_use("cannot listen for HTTP on " + wanted + "; perhaps another process does");
  STRATA_RETURN_IF_ERROR(address.status());
  made->address_ = address->substr(kTcp.size());
  return made;
}

void StatusServer::add_pages() {
  server_.handle("/healthz", [this] {
    const storenode::StorageNode* const node = node_.load();
    if (node == nullptr) return transport::HttpAnswer{.status = kUnavailable, .body = "starting\n"};
    const Status health = node->health();
    if (health.ok()) return transport::HttpAnswer{.body = "ok\n"};
    return transport::HttpAnswer{.status = kUnavailable, .body = cause_and_remedy(health) + "\n"};
  });
  const auto add = [this](const char* path, const char* type, auto text_of) {
    server_.handle(path, [=, this]() -> transport::HttpAnswer {
      const storenode::StorageNode* const node = node_.load();
      if (node == nullptr) return {.status = kUnavailable, .body = "starting\n"};
      return {.type = type, .body = text_of(node->status(), node->health())};
    });
  };
  add("/metrics", "text/plain; version=0.0.4; charset=utf-8", metrics_text);
  add("/status", "application/json", status_json);
}

}  // namespace strata::daemon
