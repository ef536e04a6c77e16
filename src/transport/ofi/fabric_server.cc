#include "transport/regions/fabric_server.h"

#include <poll.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/diag.h"
#include "base/latch.h"
#include "transport/clock.h"
#include "transport/internal/file_descriptor.h"
#include "transport/internal/log_limiter.h"
#include "transport/ofi/provider.h"
#include "transport/secret.h"

namespace strata::transport {
namespace {

using ofi::Handle;
using ofi::Info;

constexpr int kFruitlessMax = 16;  // connecting takes a few steps that are no event
constexpr int kRestMs = 10;

// One exposed region. It has a domain of its own, so that no connection reaches another region's
// memory whatever key it names (FB1).
struct Exposure {
  std::array<char, 16> token = {};
  std::shared_ptr<Region> region;  // gone only after everything below
  Handle<fid_domain> domain;
  Handle<fid_cq> completions;
  int completions_fd = -1;  // the queue's
  Handle<fid_mr> memory;
  std::map<fid*, Handle<fid_ep>> endpoints;
};

StatusOr<int> wait_fd(fid* queue) {
  int fd = -1;
  if (const int error = ::fi_control(queue, FI_GETWAIT, &fd); error != 0)
    return ofi::fabric_error("wait object", error);
  return fd;
}

}  // namespace

// All of libfabric's objects belong to one thread (FI_THREAD_DOMAIN); other threads hand it tasks.
class FabricServer::Core {
 public:
  static StatusOr<std::unique_ptr<Core>> make(const ofi::FabricAddress& address,
                                              const FabricServerOptions& options);
  ~Core();
  void start() {
    thread_ = std::thread([this] { serve(); });
  }
  StatusOr<FabricPlace> expose(std::shared_ptr<Region> region, RegionAccess access);
  void withdraw(const FabricPlace& place);
  [[nodiscard]] const std::string& address() const noexcept { return address_; }

  std::atomic<uint64_t> connections{0}, refused{0};

 private:
  Core(const FabricServerOptions& options, Info info) : options_(options), info_(std::move(info)) {}
  Status listen(const ofi::FabricAddress& address);
  void run_and_wait(const std::function<void()>& task);
  void wake() noexcept;

  // In the thread.
  void serve();
  bool run_tasks();
  bool read_events();
  void read_event_error();
  void progress();
  void sleep();
  void connect(const Info& info, Bytes said);
  Status accept(Exposure* exposure, fi_info* info, bool* taken);
  void disconnect(fid* endpoint);
  StatusOr<FabricPlace> add(std::shared_ptr<Region> region, RegionAccess access);
  StatusOr<std::unique_ptr<Exposure>> make_exposure(std::shared_ptr<Region> region,
                                                    RegionAccess access);
  void remove(const std::array<char, 16>& token);
  Exposure* find(Bytes said);

  const FabricServerOptions options_;
  const Info info_;
  std::string address_;
  FileDescriptor wake_;
  Handle<fid_fabric> fabric_;
  Handle<fid_eq> events_;
  int events_fd_ = -1;
  Handle<fid_pep> listening_;
  bool events_ready_ = false;  // when it slept last
  int fruitless_ = 0;          // times in a row that they were and nothing came of it
  std::list<std::unique_ptr<Exposure>> exposures_;
  LogLimiter log_;

  Mutex mutex_{LatchRank::kLeaf};
  CondVar done_;
  std::deque<std::function<void()>> tasks_ STRATA_GUARDED_BY(mutex_);
  bool stopping_ STRATA_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

StatusOr<std::unique_ptr<FabricServer::Core>> FabricServer::Core::make(
    const ofi::FabricAddress& address, const FabricServerOptions& options) {
  STRATA_ASSIGN_OR_RETURN(Info info, ofi::find_provider(address, ofi::Side::kOwner));
  std::unique_ptr<Core> core(new Core(options, std::move(info)));
  STRATA_RETURN_IF_ERROR(core->listen(address));
  return core;
}

Status FabricServer::Core::listen(const ofi::FabricAddress& address) {
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return error_no_space("no descriptor left");
  STRATA_ASSIGN_OR_RETURN(fabric_, ofi::open_fabric(info_.get()));
  STRATA_ASSIGN_OR_RETURN(events_, ofi::open_events(fabric_.get(), FI_WAIT_FD));
  STRATA_ASSIGN_OR_RETURN(events_fd_, wait_fd(&events_->fid));
  const std::string what = "listen at " + ofi::to_text(address);
  fid_pep* listening = nullptr;
  int error = ::fi_passive_ep(fabric_.get(), info_.get(), &listening, nullptr);
  if (error != 0) return ofi::fabric_error(what.c_str(), error);
  listening_.reset(listening);
  error = ::fi_pep_bind(listening, &events_->fid, 0);
  if (error == 0) error = ::fi_listen(listening);
  ofi::FabricAddress bound = address;
  size_t bytes = sizeof bound.socket.storage;
  if (error == 0) error = ::fi_getname(&listening->fid, &bound.socket.storage, &bytes);
  if (error != 0) return ofi::fabric_error(what.c_str(), error);
  bound.socket.bytes = static_cast<socklen_t>(bytes);
  address_ = ofi::to_text(bound);
  return ok_status();
}

FabricServer::Core::~Core() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

void FabricServer::Core::wake() noexcept {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);  // full is as good as written
}

void FabricServer::Core::run_and_wait(const std::function<void()>& task) {
  STRATA_ASSERT(std::this_thread::get_id() != thread_.get_id());
  bool done = false;
  {
    const MutexLock lock(mutex_);
    tasks_.emplace_back([this, &task, &done] {
      task();
      const MutexLock finished(mutex_);
      done = true;
      done_.notify_all();
    });
  }
  wake();
  MutexLock lock(mutex_);
  done_.wait(lock, [&done]() STRATA_REQUIRES(mutex_) { return done; });
}

StatusOr<FabricPlace> FabricServer::Core::expose(std::shared_ptr<Region> region,
                                                 RegionAccess access) {
  StatusOr<FabricPlace> place = error_internal("not exposed");
  run_and_wait([&] { place = add(std::move(region), access); });
  return place;
}

void FabricServer::Core::withdraw(const FabricPlace& place) {
  run_and_wait([&] { remove(place.token); });
}

void FabricServer::Core::serve() {
  while (run_tasks()) {
    bool any = false;
    while (read_events()) any = true;
    fruitless_ = any || !events_ready_ ? 0 : fruitless_ + 1;
    progress();
    sleep();
  }
  // Requests to connect that nobody read hold memory of libfabric's.
  while (read_events()) continue;
  exposures_.clear();
}

// False: stop.
bool FabricServer::Core::run_tasks() {
  for (;;) {
    std::function<void()> task;
    {
      const MutexLock lock(mutex_);
      if (tasks_.empty()) return !stopping_;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

// True: there may be more.
bool FabricServer::Core::read_events() {
  alignas(fi_eq_cm_entry) char buffer[sizeof(fi_eq_cm_entry) + 512];
  uint32_t event = 0;
  const ssize_t got = ::fi_eq_read(events_.get(), &event, buffer, sizeof buffer, 0);
  if (got == -FI_EAVAIL) {
    read_event_error();
    return true;
  }
  if (got < ssize_t{sizeof(fi_eq_cm_entry)}) return false;
  fi_eq_cm_entry entry;
  std::memcpy(&entry, buffer, sizeof entry);
  const Bytes said(buffer + sizeof entry, static_cast<size_t>(got) - sizeof entry);
  if (event == FI_CONNREQ) connect(Info(entry.info), said);
  if (event == FI_SHUTDOWN) disconnect(entry.fid);
  return true;
}

void FabricServer::Core::read_event_error() {
  fi_eq_err_entry entry{};
  if (::fi_eq_readerr(events_.get(), &entry, 0) < 0) return;
  disconnect(entry.fid);  // that it could not be connected
}

// Where the provider needs the processor to carry out operations, reading the queue does it.
void FabricServer::Core::progress() {
  for (const auto& exposure : exposures_) {
    fi_cq_entry entry{};
    const ssize_t got = ::fi_cq_read(exposure->completions.get(), &entry, 1);
    if (got == 1) disconnect(static_cast<fid*>(entry.op_context));  // it sent a message
    if (got != -FI_EAVAIL) continue;
    fi_cq_err_entry error{};
    (void)::fi_cq_readerr(exposure->completions.get(), &error, 0);
    if (error.err != FI_ECANCELED) disconnect(static_cast<fid*>(error.op_context));
  }
}

void FabricServer::Core::sleep() {
  // A request to connect that cannot be taken, for want of descriptors, say, stays there and would
  // wake this thread again and again.
  const bool rest = fruitless_ > kFruitlessMax;
  std::vector<fid*> queues = {&events_->fid};
  std::vector<pollfd> descriptors = {{wake_.get(), POLLIN, 0}, {rest ? -1 : events_fd_, POLLIN, 0}};
  for (const auto& exposure : exposures_) {
    queues.push_back(&exposure->completions->fid);
    descriptors.push_back({exposure->completions_fd, POLLIN, 0});
  }
  // It says no when something has come since the queues were read.
  if (::fi_trywait(fabric_.get(), queues.data(), static_cast<int>(queues.size())) == -FI_EAGAIN)
    return;
  (void)::poll(descriptors.data(), descriptors.size(), rest ? kRestMs : -1);
  events_ready_ = rest || descriptors[1].revents != 0;
  uint64_t times;
  (void)!::read(wake_.get(), &times, sizeof times);
}

// FB1.
void FabricServer::Core::connect(const Info& info, Bytes said) {
  Exposure* const exposure = find(said);
  Status made;
  if (exposure == nullptr) {
    made = error_invalid_argument("no valid token");
  } else if (connections >= options_.connections_max) {
    made = error_no_space("too many");
  } else {
    bool taken = false;
    made = accept(exposure, info.get(), &taken);
    if (made.ok() || taken) return;
  }
  refused++;
  (void)::fi_reject(listening_.get(), info->handle, nullptr, 0);
  uint64_t left_out = 0;
  if (log_.admit(monotonic_ns(), &left_out))
    diag(Severity::kWarning, "fabric %s: a connection was refused: %s (%llu more since the last)",
         address_.c_str(), std::string(made.message()).c_str(),
         static_cast<unsigned long long>(left_out));
}

// taken: the request belongs to an endpoint, and goes with it.
Status FabricServer::Core::accept(Exposure* exposure, fi_info* info, bool* taken) {
  STRATA_ASSIGN_OR_RETURN(Handle<fid_ep> endpoint,
                          ofi::open_endpoint(exposure->domain.get(), info));
  *taken = true;
  STRATA_RETURN_IF_ERROR(ofi::enable(endpoint.get(), events_.get(), exposure->completions.get()));
  fid* const name = &endpoint->fid;
  // Nobody sends messages here. One that comes would otherwise wait for a place for good and keep
  // the thread awake; so it finds one, and its sender is disconnected.
  ssize_t error = ::fi_recv(endpoint.get(), nullptr, 0, nullptr, FI_ADDR_UNSPEC, name);
  if (error == 0) error = ::fi_accept(endpoint.get(), nullptr, 0);
  if (error != 0) return ofi::fabric_error("accept", error);
  exposure->endpoints.emplace(name, std::move(endpoint));
  connections++;
  return ok_status();
}

// An endpoint that failed, or whose peer has gone. Others' names are old ones: their region has
// been withdrawn.
void FabricServer::Core::disconnect(fid* endpoint) {
  for (const auto& exposure : exposures_) {
    if (exposure->endpoints.erase(endpoint) == 0) continue;
    connections--;
    return;
  }
}

StatusOr<FabricPlace> FabricServer::Core::add(std::shared_ptr<Region> region, RegionAccess access) {
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<Exposure> exposure,
                          make_exposure(std::move(region), access));
  FabricPlace place;
  place.address = address_;
  const bool by_address = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  place.base = by_address ? reinterpret_cast<uint64_t>(exposure->region->data()) : 0;
  place.key = ::fi_mr_key(exposure->memory.get());
  place.token = exposure->token;
  exposures_.push_back(std::move(exposure));
  return place;
}

StatusOr<std::unique_ptr<Exposure>> FabricServer::Core::make_exposure(
    std::shared_ptr<Region> region, RegionAccess access) {
  auto exposure = std::make_unique<Exposure>();
  system_entropy()->fill(exposure->token.data(), exposure->token.size());
  exposure->region = std::move(region);
  STRATA_ASSIGN_OR_RETURN(exposure->domain, ofi::open_domain(fabric_.get(), info_.get()));
  STRATA_ASSIGN_OR_RETURN(exposure->completions,
                          ofi::open_completions(exposure->domain.get(), 256, FI_WAIT_FD));
  STRATA_ASSIGN_OR_RETURN(exposure->completions_fd, wait_fd(&exposure->completions->fid));
  uint64_t key = 0;  // the provider's, where it wants to choose
  if ((info_->domain_attr->mr_mode & FI_MR_PROV_KEY) == 0)
    system_entropy()->fill(reinterpret_cast<char*>(&key), sizeof key);
  fid_mr* memory = nullptr;
  const uint64_t rights = access == RegionAccess::kReadOnly ? uint64_t{FI_REMOTE_READ}
                                                            : FI_REMOTE_READ | FI_REMOTE_WRITE;
  const int error = ::fi_mr_reg(exposure->domain.get(), exposure->region->data(),
                                exposure->region->bytes(), rights, 0, key, 0, &memory, nullptr);
  if (error != 0) return ofi::fabric_error("registering a region", error);
  exposure->memory.reset(memory);
  return exposure;
}

// FB2: connections end before the registration does. A provider that copies with the processor may
// be inside a put whose key it has checked already.
void FabricServer::Core::remove(const std::array<char, 16>& token) {
  for (auto place = exposures_.begin(); place != exposures_.end(); ++place) {
    if ((*place)->token != token) continue;
    connections -= (*place)->endpoints.size();
    exposures_.erase(place);
    return;
  }
}

// A connection manager may hand over more bytes than the peer gave it.
Exposure* FabricServer::Core::find(Bytes said) {
  const Bytes token = said.substr(0, std::tuple_size_v<decltype(FabricPlace::token)>);
  for (const auto& exposure : exposures_) {
    if (same_bytes(token, {exposure->token.data(), exposure->token.size()})) return exposure.get();
  }
  return nullptr;
}

// --- FabricServer ------------------------------------------------------------------------------

bool fabric_is_built() noexcept { return true; }

FabricServer::FabricServer(std::unique_ptr<Core> core) : core_(std::move(core)) {}
FabricServer::~FabricServer() = default;

StatusOr<std::unique_ptr<FabricServer>> FabricServer::start(const std::string& address,
                                                            const FabricServerOptions& options) {
  STRATA_ASSIGN_OR_RETURN(const ofi::FabricAddress parsed, ofi::parse_fabric_address(address));
  if (!may_bind(parsed.socket))
    return error_invalid_argument("fabric address " + address + ": must be loopback or private");
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<Core> core, Core::make(parsed, options));
  core->start();
  return std::unique_ptr<FabricServer>(new FabricServer(std::move(core)));
}

StatusOr<FabricPlace> FabricServer::expose(std::shared_ptr<Region> region, RegionAccess access) {
  return core_->expose(std::move(region), access);
}
void FabricServer::withdraw(const FabricPlace& place) { core_->withdraw(place); }
const std::string& FabricServer::address() const noexcept { return core_->address(); }
uint64_t FabricServer::connections() const noexcept { return core_->connections; }
uint64_t FabricServer::refused() const noexcept { return core_->refused; }

}  // namespace strata::transport
