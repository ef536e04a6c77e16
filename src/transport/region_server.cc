#include "transport/region_server.h"

#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "base/latch.h"
#include "transport/internal/region_memory.h"

namespace strata::transport {
struct RegionServer::Core {
  explicit Core(uint64_t reply_bytes_max_in) : reply_bytes_max(reply_bytes_max_in) {}
  void open(const Request& request, Responder responder);
  void run(const Request& request, Responder responder);
  void persist(const Request& request, Responder responder);
  // The exposed region of that incarnation, or null.
  std::shared_ptr<Region> find(uint64_t incarnation);
  void work();

  struct Job {
    std::shared_ptr<Region> region;
    uint64_t offset, bytes;
    Responder responder;
  };
  const uint64_t reply_bytes_max;
  Mutex mutex{LatchRank::kLeaf};
  std::map<std::string, std::shared_ptr<Region>> by_name;      // under mutex
  std::map<uint64_t, std::shared_ptr<Region>> by_incarnation;  // under mutex
  std::deque<Job> jobs;                                        // under mutex
  bool stopping = false;                                       // under mutex
  CondVar changed;
  std::thread worker;
};

RegionServer::RegionServer(RpcServer* server)
    : core_(std::make_shared<Core>(server->payload_bytes_max())) {
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
}

void RegionServer::expose(const std::string& name, std::shared_ptr<Region> region) {
  const MutexLock lock(core_->mutex);
  std::shared_ptr<Region>& place = core_->by_name[name];
  if (place != nullptr) core_->by_incarnation.erase(place->incarnation());
  core_->by_incarnation[region->incarnation()] = region;
  place = std::move(region);
}

void RegionServer::withdraw(const std::string& name) {
  const MutexLock lock(core_->mutex);
  const auto place = core_->by_name.find(name);
  if (place == core_->by_name.end()) return;
  core_->by_incarnation.erase(place->second->incarnation());
  core_->by_name.erase(place);
}

std::shared_ptr<Region> RegionServer::Core::find(uint64_t incarnation) {
  const MutexLock lock(mutex);
  const auto place = by_incarnation.find(incarnation);
  return place == by_incarnation.end() ? nullptr : place->second;
}

// Request: wants the file u8 | name. Reply: bytes u64 | epoch u64 | incarnation u64, and the file.
void RegionServer::Core::open(const Request& request, Responder responder) {
  ByteReader reader(request.payload);
  const bool wants_file = reader.u8() != 0;
  const std::string name(reader.bytes(reader.remaining()));
  std::shared_ptr<Region> region;
  {
    const MutexLock lock(mutex);
    const auto place = by_name.find(name);
    if (place != by_name.end()) region = place->second;
  }
  if (region == nullptr) return responder.fail(error_not_found("no region " + name));
  std::string reply;
  append_u64(&reply, region->bytes());
  append_u64(&reply, region->epoch());
  append_u64(&reply, region->incarnation());
  if (!wants_file) return responder.reply(std::move(reply), region->epoch());
  if (!responder.carries_descriptors())
    return responder.fail(error_invalid_argument("a region is mapped over a unix socket only"));
  FileDescriptor file(::dup(region->fd()));
  if (!file.valid()) return responder.fail(error_no_space("no descriptor left"));
  responder.reply_with(std::move(file), std::move(reply), region->epoch());
}

void RegionServer::Core::run(const Request& request, Responder responder) {
  ByteReader reader(request.payload);
  const std::shared_ptr<Region> region = find(reader.u64());
  if (region == nullptr) return responder.fail(error_fenced("the region has been withdrawn"));
  StatusOr<std::string> reply =
      run_encoded(reader.bytes(reader.remaining()), *region, reply_bytes_max);
  if (!reply.ok()) return responder.fail(reply.status(), region->epoch());
  responder.reply(*std::move(reply), region->epoch());
}

// Request: incarnation u64 | offset u64 | bytes u64.
void RegionServer::Core::persist(const Request& request, Responder responder) {
  ByteReader reader(request.payload);
  std::shared_ptr<Region> region = find(reader.u64());
  const uint64_t offset = reader.u64();
  const uint64_t bytes = reader.u64();
  if (!reader.ok()) return responder.fail(error_corruption("no persist"));
  if (region == nullptr) return responder.fail(error_fenced("the region has been withdrawn"));
  const MutexLock lock(mutex);
  jobs.push_back({std::move(region), offset, bytes, std::move(responder)});
  changed.notify_one();
}

void RegionServer::Core::work() {
  MutexLock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return stopping || !jobs.empty(); });
    if (stopping) return;
    Job job = std::move(jobs.front());
    jobs.pop_front();
    lock.unlock();
    const Status done = job.region->persist(job.offset, job.bytes);
    if (done.ok()) {
      job.responder.reply(std::string(), job.region->epoch());
    } else {
      job.responder.fail(done, job.region->epoch());
    }
    lock.lock();
  }
}

}  // namespace strata::transport
