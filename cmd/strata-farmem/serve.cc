#include "serve.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "transport/calls/rpc_server.h"
#include "transport/secret.h"
#include "transport/sockets/event_loop.h"
#include "transport/sockets/socket_network.h"

namespace strata::farmem {
namespace {

constexpr int kFailed = 1;

int failed(const Status& why) {
  std::fprintf(stderr, "strata-farmem: %s\n", std::string(why.message()).c_str());
  return kFailed;
}

StatusOr<transport::Secret> secret_of(const std::string& path) {
  const Status made = transport::create_secret_file(path);
  if (!made.ok() && !is_duplicate_key(made)) return made;
  return transport::load_secret(path);
}

}  // namespace

int serve(const ServeSettings& settings) {
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int signal : {SIGTERM, SIGINT}) ::sigaddset(&ends, signal);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // inherited by the threads below
  ::signal(SIGPIPE, SIG_IGN);
  const auto secret = secret_of(settings.secret_file);
  if (!secret.ok()) return failed(secret.status());

  transport::IoThread io("memory");
  transport::SocketNetwork network(io.loop(), nullptr);
  const transport::World world{io.loop(), &network, transport::system_entropy()};
  std::unique_ptr<MemoryService> service;  // outlives the server
  transport::RpcServer server(world, *secret, {});
  service = std::make_unique<MemoryService>(world, &server, settings.service);
  std::string listening;
  for (const std::string& wanted : settings.listen) {
    const auto address = server.listen(wanted);
    if (!address.ok()) return failed(address.status());
    listening += (listening.empty() ? "" : ",") +
                 (address->rfind("tcp:", 0) == 0 ? address->substr(4) : *address);
  }
  std::printf("ready address=%s\n", listening.c_str());
  std::fflush(stdout);
  int signal = 0;
  while (::sigwait(&ends, &signal) != 0) {
  }
  return EXIT_SUCCESS;
}

}  // namespace strata::farmem
