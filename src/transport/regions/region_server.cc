#include "transport/regions/region_server.h"

#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/diag.h"
#include "base/latch.h"
#include "transport/regions/fabric.h"
#include "transport/regions/region_memory.h"

namespace strata::transport {
namespace {

// A descriptor of the region's file for a peer, with no more rights than that (RX3).
StatusOr<FileDescriptor> descriptor_of(const Region& region, RegionAccess access) {
  FileDescriptor file(
      access == RegionAccess::kReadWrite
          ? ::dup(region.fd())
          : ::open(("/proc/self/fd/" + std::to_string(region.fd())).c_str(), O_RDONLY | O_CLOEXEC));
  if (file.valid()) return file;
  if (errno == EMFILE || errno == ENFILE) return error_no_space("no descriptor left");
  return error_internal("no descriptor of the region for reading: " +
                        std::string(std::strerror(errno)));
}

}  // namespace

struct RegionServer::Core {
  Core(uint64_t reply_bytes_max_in, FabricServer* fabric_in)
      : reply_bytes_max(reply_bytes_max_in), fabric(fabric_in) {}
  void open(const Request& request, Responder responder);
  void run(const Request& request, Responder responder);
  void persist(const Request& request, Responder responder);
  struct Found {
    std::shared_ptr<Region> region;
    RegionAccess access = RegionAccess::kReadOnly;
  };
  // The exposed region of that incarnation, or null.
  Found find(uint64_t incarnation);
  void work();
  // What is exposed under the name from now on, perhaps nothing. Ends what was.
  void replace(const std::string& name, const std::shared_ptr<Region>& region, RegionAccess access);
  StatusOr<FabricPlace> expose_on_fabric(const std::string& name, std::shared_ptr<Region> region,
                                         RegionAccess access);

  struct Exposed {
    std::shared_ptr<Region> region;
    StatusOr<FabricPlace> place;  // or why there is none
    RegionAccess access = RegionAccess::kReadWrite;
  };
  struct Job {
    std::shared_ptr<Region> region;
    uint64_t offset, bytes;
    Responder responder;
  };
  const uint64_t reply_bytes_max;
  FabricServer* const fabric;  // or null
  Mutex mutex{LatchRank::kLeaf};
  std::map<std::string, Exposed> by_name STRATA_GUARDED_BY(mutex);
  std::map<uint64_t, Found> by_incarnation STRATA_GUARDED_BY(mutex);
  std::deque<Job> jobs STRATA_GUARDED_BY(mutex);
  bool stopping STRATA_GUARDED_BY(mutex) = false;
  CondVar changed;
  std::atomic<uint64_t> writes_refused{0}, out_of_bounds{0};
  std::thread worker;
};

RegionServer::RegionServer(RpcServer* server, FabricServer* fabric)
    : core_(std::make_shared<Core>(server->payload_bytes_max(), fabric)) {
  server->handle(kRegionOpenMethod, [core = core_](const Request& request, Responder responder) {
    core->open(request, std::move(responder));
  });
  server->handle(kRegionRunMethod, [core = core_](const Request& request, Responder responder) {
    core->run(request, std::move(responder));
  });
  server->handle(kRegionPersistMethod, [core = core_](const Request& request, Responder responder) {
    core->persist(request, std::move(responder));
  });
  core_->worker = std::thread([core = core_.get()] { core->work(); });
}

RegionServer::~RegionServer() {
  {
    const MutexLock lock(core_->mutex);
    core_->stopping = true;
    core_->changed.notify_all();
  }
  core_->worker.join();
  std::vector<std::string> names;  // nobody changes them any more
  for (const auto& [name, exposed] : core_->by_name) names.push_back(name);
  for (const std::string& name : names) core_->replace(name, nullptr, {});
}

void RegionServer::expose(const std::string& name, const std::shared_ptr<Region>& region,
                          RegionAccess access) {
  const bool readable = region->access() == RegionAccess::kReadOnly;  // by this process, too
  core_->replace(name, region, readable ? RegionAccess::kReadOnly : access);
}

void RegionServer::withdraw(const std::string& name) { core_->replace(name, nullptr, {}); }

uint64_t RegionServer::writes_refused() const noexcept { return core_->writes_refused.load(); }

uint64_t RegionServer::out_of_bounds() const noexcept { return core_->out_of_bounds.load(); }

void RegionServer::Core::replace(const std::string& name, const std::shared_ptr<Region>& region,
                                 RegionAccess access) {
  Exposed next{region, error_invalid_argument("its owner has no fabric"), access};
  if (region != nullptr && fabric != nullptr) next.place = expose_on_fabric(name, region, access);
  Exposed before{nullptr, error_not_found(""), access};
  {
    const MutexLock lock(mutex);
    const auto place = by_name.find(name);
    if (place != by_name.end()) {
      before = std::move(place->second);
      by_incarnation.erase(before.region->incarnation());
      by_name.erase(place);
    }
    if (region != nullptr) {
      by_incarnation[region->incarnation()] = {region, access};
      by_name.emplace(name, std::move(next));
    }
  }
  if (before.place.ok()) fabric->withdraw(*before.place);
}

StatusOr<FabricPlace> RegionServer::Core::expose_on_fabric(const std::string& name,
                                                           std::shared_ptr<Region> region,
                                                           RegionAccess access) {
  StatusOr<FabricPlace> place = fabric->expose(std::move(region), access);
  if (!place.ok())
    diag(Severity::kWarning, "region %s is not reached over the fabric: %s", name.c_str(),
         std::string(place.status().message()).c_str());
  return place;
}

RegionServer::Core::Found RegionServer::Core::find(uint64_t incarnation) {
  const MutexLock lock(mutex);
  const auto place = by_incarnation.find(incarnation);
  return place == by_incarnation.end() ? Found() : place->second;
}

// Request: RegionWant u8 | name. Reply: bytes u64 | epoch u64 | incarnation u64 | access u8, and
// the file or the place (append_place()).
void RegionServer::Core::open(const Request& request, Responder responder) {
  ByteReader reader(request.payload);
  const auto want = static_cast<RegionWant>(reader.u8());
  const std::string name(reader.bytes(reader.remaining()));
  if (!reader.ok() || want > RegionWant::kPlace)
    return responder.fail(error_corruption("no such request for a region"));
  std::shared_ptr<Region> region;
  RegionAccess access = RegionAccess::kReadOnly;
  StatusOr<FabricPlace> fabric_place = error_not_found("");
  {
    const MutexLock lock(mutex);
    const auto place = by_name.find(name);
    if (place != by_name.end()) {
      region = place->second.region;
      access = place->second.access;
      if (want == RegionWant::kPlace) fabric_place = place->second.place;
    }
  }
  if (region == nullptr) return responder.fail(error_not_found("no region " + name));
  std::string reply;
  append_u64(&reply, region->bytes());
  append_u64(&reply, region->epoch());
  append_u64(&reply, region->incarnation());
  append_u8(&reply, static_cast<uint8_t>(access));
  if (want == RegionWant::kPlace) {
    if (!fabric_place.ok()) return responder.fail(fabric_place.status(), region->epoch());
    append_place(&reply, *fabric_place);
  }
  if (want != RegionWant::kFile) return responder.reply(std::move(reply), region->epoch());
  if (!responder.carries_descriptors())
    return responder.fail(error_invalid_argument("a region is mapped over a unix socket only"));
  StatusOr<FileDescriptor> file = descriptor_of(*region, access);
  if (!file.ok()) return responder.fail(file.status());
  responder.reply_with(*std::move(file), std::move(reply), region->epoch());
}

void RegionServer::Core::run(const Request& request, Responder responder) {
  ByteReader reader(request.payload);
  const auto [region, access] = find(reader.u64());
  if (region == nullptr) return responder.fail(error_withdrawn("the region has been withdrawn"));
  uint64_t refused = 0;
  StatusOr<std::string> reply =
      run_encoded(reader.bytes(reader.remaining()), *region, reply_bytes_max, access, &refused);
  if (refused > 0) writes_refused.fetch_add(refused);
  if (is_out_of_range(reply.status())) out_of_bounds.fetch_add(1);
  if (!reply.ok()) return responder.fail(reply.status(), region->epoch());
  responder.reply(*std::move(reply), region->epoch());
}

// Request: incarnation u64 | offset u64 | bytes u64.
void RegionServer::Core::persist(const Request& request, Responder responder) {
  ByteReader reader(request.payload);
  std::shared_ptr<Region> region = find(reader.u64()).region;
  const uint64_t offset = reader.u64();
  const uint64_t bytes = reader.u64();
  if (!reader.ok()) return responder.fail(error_corruption("no persist"));
  if (region == nullptr) return responder.fail(error_withdrawn("the region has been withdrawn"));
  const MutexLock lock(mutex);
  jobs.push_back({std::move(region), offset, bytes, std::move(responder)});
  changed.notify_one();
}

void RegionServer::Core::work() {
  MutexLock lock(mutex);
  for (;;) {
    changed.wait(lock, [this]() STRATA_REQUIRES(mutex) { return stopping || !jobs.empty(); });
    if (stopping) return;
    Job job = std::move(jobs.front());
    jobs.pop_front();
    lock.unlock();
    const Status done = job.region->persist(job.offset, job.bytes);
    if (done.ok()) {
      job.responder.reply(std::string(), job.region->epoch());
    } else {
      if (is_out_of_range(done)) out_of_bounds.fetch_add(1);
      job.responder.fail(done, job.region->epoch());
    }
    lock.lock();
  }
}

}  // namespace strata::transport
