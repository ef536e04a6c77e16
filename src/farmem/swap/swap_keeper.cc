#include "farmem/swap/swap_keeper.h"

#include <fcntl.h>
#include <linux/loop.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/swap.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

#include "base/diag.h"
#include "base/thread_name.h"
#include "farmem/fuse/fuse_file.h"
#include "farmem/pager/shared_setup.h"
#include "farmem/swap/far_pages.h"
#include "farmem/swap/limits.h"
#include "farmem/swap/small_files.h"
#include "farmem/swap/swap_area.h"
#include "transport/clock.h"

namespace strata::farmem {
namespace {

constexpr const char* kPageCluster = "/proc/sys/vm/page-cluster";
constexpr int kRenewEveryMs = 1000;
constexpr int kLoopTriesMax = 32;  // somebody else takes the free one
constexpr uint64_t kSwapPagesMax = 1ull << 28;

std::string errno_text() { return std::strerror(errno); }

void count(Counter& counter, uint64_t by = 1) noexcept {
  counter.fetch_add(by, std::memory_order_relaxed);
}

Status too_long() { return error_invalid_argument("the path is too long"); }

Status use_for_swapping(const std::string& place, HostChanges* changes) {
  if (!put_path(&changes->swap, place)) return too_long();
  if (::swapon(place.c_str(), 0) == 0) return ok_status();
  const std::string why = errno_text();
  changes->swap.fill('\0');
  return error_invalid_argument("the kernel does not swap to " + place + ": " + why);
}

// All of it, also where the kernel takes part of it only.
Status write_header(int fd, uint64_t pages) {
  const SwapHeader header = swap_header(pages);
  if (::pwrite(fd, header.data(), header.size(), 0) != static_cast<ssize_t>(header.size()) ||
      ::fsync(fd) != 0)
    return error_invalid_argument("the head of the swap area cannot be written: " + errno_text());
  return ok_status();
}

// What the kernel reads along with a page, as a power of two.
int page_cluster_of(uint32_t prefetch) { return std::countr_zero(prefetch + 1); }

Status set_page_cluster(uint32_t prefetch, HostChanges* changes) {
  const int before = std::atoi(read_small(kPageCluster).c_str());
  const int wanted = page_cluster_of(prefetch);
  if (before == wanted) return ok_status();
  changes->page_cluster = before;
  const Status set = write_small(kPageCluster, std::to_string(wanted));
  if (!set.ok()) changes->page_cluster = -1;
  return set;
}

// The keeper's process: one object, until it ends.
class Keeper {
 public:
  Keeper(SwapState* state, const SwapOptions& options) : state_(state), options_(options) {}

  Status set_up(const transport::Secret& secret) {
    HostChanges* const changes = &state_->changes;
    STRATA_RETURN_IF_ERROR(make_memory_group(options_.local_bytes, changes));
    STRATA_RETURN_IF_ERROR(set_page_cluster(options_.prefetch, changes));
    // The kernel ends somebody else first, when it must. Not allowed: then it may be this.
    (void)write_small("/proc/self/oom_score_adj", "-1000");
    switch (options_.to) {
      case SwapTo::kMemoryNode:
        return set_up_memory_node(secret);
      case SwapTo::kDisk:
        return set_up_disk();
      case SwapTo::kZram:
        return set_up_zram();
    }
    return error_internal("no such place to swap to");
  }

  // Returns when the starter has nothing more to say.
  void wait(int socket) {
    pollfd watched{.fd = socket, .events = POLLIN, .revents = 0};
    for (;;) {
      const int ready = ::poll(&watched, 1, kRenewEveryMs);
      char byte = 0;
      if (ready > 0 && ::read(socket, &byte, 1) <= 0) return;
      if (ready == 0 && far_ != nullptr) note(far_->renew());
    }
  }

  Status end() {
    const Status status = put_back(&state_->changes);
    if (server_.joinable()) {
      // Swapped pages that could not be taken back: the kernel still uses the file.
      if (!status.ok()) {
        server_.detach();
        return status;
      }
      server_.join();
      // A node that is gone has forgotten it anyhow.
      (void)far_->close();
    }
    return status;
  }

 private:
  Status set_up_memory_node(const transport::Secret& secret) {
    ClientOptions client{.address = options_.memory_node,
                         .name = "swap",
                         .pages = options_.swap_bytes / kPageBytes,
                         .timeout_us = options_.timeout_us};
    if (options_.link.round_trip_ns + options_.link.bytes_per_second > 0)
      client.link_model = std::make_shared<transport::LinkModel>(options_.link);
    STRATA_ASSIGN_OR_RETURN(auto opened, MemoryClient::open(secret, client));
    far_ = std::make_unique<FarPages>(std::move(opened));
    STRATA_RETURN_IF_ERROR(far_->write(0, 1, swap_header(far_->pages()).data()));
    STRATA_RETURN_IF_ERROR(make_file());
    STRATA_RETURN_IF_ERROR(lock_memory());
    server_ = std::thread([this] {
      name_this_thread("fm-swap");
      file_->serve();
    });
    std::string device;
    const Status made = make_loop(&device);
    // From now on only the kernel uses the file, if anybody.
    const Status hidden = file_->unmount();
    ::rmdir(folder_.c_str());
    if (!made.ok() || !hidden.ok()) {
      server_.join();
      return made.ok() ? hidden : made;
    }
    const Status used = use_for_swapping(device, &state_->changes);
    ::close(loop_);  // once nobody has it open, the kernel takes it apart
    if (!used.ok()) server_.join();
    return used;
  }

  // In a mount namespace of this process's: nobody else sees it, and it is gone with the process.
  Status make_file() {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      return error_invalid_argument("a mount namespace is not allowed here: " + errno_text());
    char folder[] = "/tmp/strata-farmem-XXXXXX";
    if (::mkdtemp(folder) == nullptr)
      return error_invalid_argument("no folder can be made in /tmp: " + errno_text());
    folder_ = folder;
    FuseContent content{.pages = far_->pages(),
                        .read =
                            [this](uint64_t first, uint64_t count, char* to) {
                              return timed(state_->reads, state_->pages_in, count,
                                           [&] { return far_->read(first, count, to); });
                            },
                        .write =
                            [this](uint64_t first, uint64_t count, const char* from) {
                              return timed(state_->writes, state_->pages_out, count,
                                           [&] { return far_->write(first, count, from); });
                            }};
    auto file = FuseFile::make(folder_, std::move(content));
    if (!file.ok()) {
      ::rmdir(folder_.c_str());
      return file.status();
    }
    file_ = *std::move(file);
    return ok_status();
  }

  template <typename Work>
  Status timed(Counter& requests, Counter& pages, uint64_t pages_now, const Work& work) {
    // A silent node is waited for once, not once for each request.
    if (state_->lost.load() != 0) return error_io_error();
    const uint64_t begin_ns = transport::monotonic_ns();
    const Status status = work();
    count(requests);
    count(pages, pages_now);
    count(state_->service_ns, transport::monotonic_ns() - begin_ns);
    note(status);
    return status;
  }

  void note(const Status& status) {
    if (status.ok() || state_->lost.load() != 0) return;
    put_text(&state_->message, {status.message().data(), status.message().size()});
    state_->lost.store(1);
  }

  Status make_loop(std::string* device) {
    const int file = ::open(file_->path().c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
    if (file < 0) return error_invalid_argument("the FUSE file cannot be opened: " + errno_text());
    const Status made = make_loop_of(file, device);
    ::close(file);
    return made;
  }

  Status make_loop_of(int file, std::string* device) {
    const int control = ::open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0)
      return error_invalid_argument("/dev/loop-control cannot be opened: " + errno_text());
    loop_config config{};
    config.fd = static_cast<uint32_t>(file);
    config.block_size = kPageBytes;
    config.info.lo_flags = LO_FLAGS_DIRECT_IO | LO_FLAGS_AUTOCLEAR;
    Status made = error_invalid_argument("no loop device is free");
    for (int tries = 0; tries < kLoopTriesMax && !made.ok(); tries++) {
      const int number = ::ioctl(control, LOOP_CTL_GET_FREE);
      if (number < 0) break;
      *device = "/dev/loop" + std::to_string(number);
      loop_ = ::open(device->c_str(), O_RDWR | O_CLOEXEC);
      if (loop_ >= 0 && ::ioctl(loop_, LOOP_CONFIGURE, &config) == 0) {
        made = ok_status();
        break;
      }
      made = error_invalid_argument(*device + ": " + errno_text());
      if (loop_ >= 0) ::close(loop_);
      loop_ = -1;
    }
    ::close(control);
    return made;
  }

  Status set_up_disk() {
    HostChanges* const changes = &state_->changes;
    const std::string path =
        options_.folder + "/strata-farmem-" + std::to_string(::getpid()) + ".swap";
    if (!put_path(&changes->swap_file, path)) return too_long();
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
      const std::string why = errno_text();
      changes->swap_file.fill('\0');
      return error_invalid_argument("cannot make " + path + ": " + why);
    }
    const uint64_t pages = options_.swap_bytes / kPageBytes;
    const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(pages * kPageBytes));
    const Status made =
        error == 0
            ? write_header(fd, pages)
            : error_invalid_argument("no room for " + std::to_string(options_.swap_bytes) +
                                     " bytes in " + options_.folder + ": " + std::strerror(error));
    ::close(fd);
    STRATA_RETURN_IF_ERROR(made);
    if (options_.operations_per_second > 0)
      STRATA_RETURN_IF_ERROR(make_io_group(options_.operations_per_second, path, changes));
    return use_for_swapping(path, changes);
  }

  Status set_up_zram() {
    // It is not known before which one it will be: the only change that is written down after it.
    const std::string number = read_small("/sys/class/zram-control/hot_add");
    if (number.empty()) return error_invalid_argument("this kernel has no zram that can be added");
    state_->changes.zram = std::atoi(number.c_str());
    const std::string name = "zram" + std::to_string(state_->changes.zram);
    STRATA_RETURN_IF_ERROR(
        write_small("/sys/block/" + name + "/disksize", std::to_string(options_.swap_bytes)));
    const std::string device = "/dev/" + name;
    const int fd = ::open(device.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return error_invalid_argument(device + ": " + errno_text());
    const Status written = write_header(fd, options_.swap_bytes / kPageBytes);
    ::close(fd);
    STRATA_RETURN_IF_ERROR(written);
    return use_for_swapping(device, &state_->changes);
  }

  SwapState* const state_;
  const SwapOptions& options_;
  std::unique_ptr<FarPages> far_;
  std::unique_ptr<FuseFile> file_;
  std::string folder_;
  int loop_ = -1;
  std::thread server_;
};

// A line: empty, or what went wrong.
void say(int socket, const Status& status) {
  const std::string line = std::string(status.message()) + "\n";
  (void)!::write(socket, line.data(), line.size());  // a starter that is gone wants to know nothing
}

Status hear(int socket) {
  std::string line;
  for (char byte = 0; ::read(socket, &byte, 1) == 1;) {
    if (byte == '\n') return line.empty() ? ok_status() : error_invalid_argument(line);
    line += byte;
  }
  return error_internal("the process that keeps the swap was ended");
}

[[noreturn]] void keep(SwapState* state, const SwapOptions& options,
                       const transport::Secret& secret, int socket) {
  ::setsid();
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(nothing, STDOUT_FILENO);
  set_diag_sink([](Severity, std::string_view) {});
  name_this_thread("fm-keeper");
  // Never destroyed: its thread may serve until the process is gone.
  auto* const keeper = new Keeper(state, options);
  const Status ready = keeper->set_up(secret);
  if (!ready.ok()) {
    // Why it cannot be is what the starter wants to know.
    (void)put_back(&state->changes);
    say(socket, ready);
    ::_exit(1);
  }
  say(socket, ready);
  keeper->wait(socket);
  const Status ended = keeper->end();
  say(socket, ended);
  ::_exit(ended.ok() ? 0 : 1);
}

}  // namespace

Status SwapKeeper::check(const SwapOptions& options) {
  if (::geteuid() != 0)
    return error_invalid_argument(
        "swapping needs root: the kernel's places to swap to are set there");
  if (::sysconf(_SC_PAGESIZE) != static_cast<long>(kPageBytes))
    return error_invalid_argument("swapping needs pages of 4096 bytes");
  const std::string other = swap_in_use(read_small("/proc/swaps"));
  if (!other.empty())
    return error_invalid_argument("this machine swaps to " + other +
                                  " already, and the kernel would use both: swapoff it first");
  if (!std::has_single_bit(options.prefetch + 1))
    return error_invalid_argument("when swapping, prefetch is 0, 1, 3, 7, 15, 31 or 63");
  if (options.swap_bytes / kPageBytes < kFramesMin ||
      options.swap_bytes / kPageBytes > kSwapPagesMax)
    return error_invalid_argument("far memory to swap to: 128 KiB to 1 TiB");
  return ok_status();
}

StatusOr<std::unique_ptr<SwapKeeper>> SwapKeeper::start(const transport::Secret& secret,
                                                        const SwapOptions& options) {
  STRATA_RETURN_IF_ERROR(check(options));
  void* const memory =
      ::mmap(nullptr, sizeof(SwapState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  std::array<int, 2> sockets{-1, -1};
  if (memory == MAP_FAILED ||
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0)
    return error_no_space("no memory or no descriptor is left");
  auto* const state = ::new (memory) SwapState;
  const pid_t pid = ::fork();
  if (pid < 0) return error_no_space("no process can be started: " + errno_text());
  if (pid == 0) {
    ::close(sockets[0]);
    keep(state, options, secret, sockets[1]);
  }
  ::close(sockets[1]);
  auto keeper = std::unique_ptr<SwapKeeper>(new SwapKeeper(state, pid, sockets[0]));
  STRATA_RETURN_IF_ERROR(hear(sockets[0]));
  return keeper;
}

bool SwapKeeper::is_gone() const {
  pollfd watched{.fd = socket_, .events = POLLIN, .revents = 0};
  return ::poll(&watched, 1, 0) > 0;
}

Status SwapKeeper::stop() {
  if (pid_ < 0) return ok_status();
  ::shutdown(socket_, SHUT_WR);
  Status status = hear(socket_);
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  // FM43: whatever it has not done.
  if (!status.ok()) status = put_back(&state_->changes);
  return status;
}

SwapKeeper::~SwapKeeper() {
  // Who wants to know calls it before.
  (void)stop();
  ::close(socket_);
  ::munmap(state_, sizeof(SwapState));
}

}  // namespace strata::farmem
