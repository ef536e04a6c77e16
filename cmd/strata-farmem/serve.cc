#include "serve.h"

#include <memory>
#include <string>
#include <vector>

#include "daemon/run.h"
#include "transport/calls/rpc_server.h"
#include "transport/secret.h"
#include "transport/sockets/event_loop.h"
#include "transport/sockets/socket_network.h"

namespace strata::farmem {
namespace {

constexpr uint64_t kStopUsMax = 10'000'000;  // nothing of it lasts longer than the process

StatusOr<transport::Secret> secret_of(const std::string& path) {
  const Status made = transport::create_secret_file(path);
  if (!made.ok() && !is_duplicate_key(made)) return made;
  return transport::load_secret(path);
}

class MemoryDaemon final : public daemon::Daemon {
 public:
  explicit MemoryDaemon(const ServeSettings& settings) : settings_(settings) {}

  [[nodiscard]] std::vector<daemon::Field> about() const override { return {}; }
  StatusOr<std::string> open(const daemon::Surroundings& around) override {
    STRATA_ASSIGN_OR_RETURN(const transport::Secret secret, secret_of(settings_.secret_file));
    transport::ServerOptions options;
    options.connections_max = around.descriptors.rpc;
    io_ = std::make_unique<transport::IoThread>("memory");
    network_ = std::make_unique<transport::SocketNetwork>(io_->loop(), nullptr);
    const transport::World world{io_->loop(), network_.get(), transport::system_entropy()};
    server_ = std::make_unique<transport::RpcServer>(world, secret, options);
    service_ = std::make_unique<MemoryService>(world, server_.get(), settings_.service);
    std::string listening;
    for (const std::string& wanted : settings_.listen) {
      STRATA_ASSIGN_OR_RETURN(const std::string address, server_->listen(wanted));
      listening += (listening.empty() ? "" : ",") + daemon::shown_address(address);
    }
    return listening;
  }
  void stop() override { server_.reset(); }

 private:
  const ServeSettings& settings_;
  std::unique_ptr<transport::IoThread> io_;
  std::unique_ptr<transport::SocketNetwork> network_;
  std::unique_ptr<MemoryService> service_;  // outlives the server
  std::unique_ptr<transport::RpcServer> server_;
};

}  // namespace

int serve(const ServeSettings& settings) {
  const daemon::RunOptions options{.program = "strata-farmem", .stop_us_max = kStopUsMax};
  const int code = daemon::run_daemon(options, std::make_unique<MemoryDaemon>(settings));
  return code == daemon::kUsage ? daemon::kFailed : code;  // 2 is for the command line alone
}

}  // namespace strata::farmem
