#include "memnode/service/pool_service.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/diag.h"
#include "memnode/service/random_name.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"

namespace strata::memnode {

using transport::Request;
using transport::Responder;

namespace {

constexpr std::string_view kFilePrefix = "pool-";
constexpr std::string_view kAsidePrefix = "aside-";  // PV5
using transport::kRegionHeaderBytes;
constexpr uint32_t kSlotsMin = 64;  // who wants as much as there is gets no less

// The most slots of a region of at most so many bytes.
uint32_t slots_in(uint64_t bytes) {
  uint64_t slots = std::min<uint64_t>(bytes / (kPageBytes + sizeof(SlotHeader)), UINT32_MAX - 1);
  while (slots != 0 && PoolFile::region_bytes(static_cast<uint32_t>(slots)) > bytes) --slots;
  return static_cast<uint32_t>(slots);
}

Status too_much() { return error_busy("too many requests for pages wait"); }

}  // namespace

PoolService::PoolService(Parts parts) : parts_(std::move(parts)) {}

void PoolService::register_on(transport::RpcServer* server) {
  const auto handle = [&](uint16_t method, void (PoolService::*run)(Bytes, const To&)) {
    proto::serve(server, method, [this, run](const Request& call, Responder responder) {
      (this->*run)(call.payload, std::make_shared<Responder>(std::move(responder)));
    });
  };
#define STRATA_POOL_METHOD(number, constant, counter, ...) \
  handle(proto::constant, &PoolService::counter);
#include "proto/methods.def"
}

// --- calls of a pool's user ---

// PV2
void PoolService::refuse(const Status& why, const To& to) {
  counters_.bad_requests.fetch_add(1, std::memory_order_relaxed);
  to->fail(why);
}

void PoolService::refuse_too_much(const To& to) {
  counters_.too_many_requests.fetch_add(1, std::memory_order_relaxed);
  to->fail(too_much());
}

// The pool of that content, or else one of the stream: that one knows what to say.
PoolService::PoolPtr PoolService::find(const proto::PoolUser& user) const {
  const MutexLock lock(mutex_);
  PoolPtr found;
  for (const auto& [key, pool] : pools_) {
    if (key.stream != user.stream) continue;
    if (found == nullptr || pool->incarnation() == user.incarnation) found = pool;
  }
  return found;
}

template <class Message>
void PoolService::serve(const StatusOr<Message>& request,
                        void (ServedPool::*run)(const Message&, const To&), const To& to) {
  if (!request.ok()) return refuse(request.status(), to);
  const PoolPtr pool = find(request->user);
  if (pool == nullptr) {
    counters_.stale_calls.fetch_add(1, std::memory_order_relaxed);
    return to->fail(error_not_found("this memory node has no pool of that stream"));
  }
  if (!pool->tasks()->post(
          [pool = pool.get(), run, to, asked = *request] { (pool->*run)(asked, to); }, 0))
    refuse_too_much(to);
}

void PoolService::pool_list(Bytes payload, const To& to) {
  serve(proto::decode_pool_list(payload), &ServedPool::list, to);
}
void PoolService::pool_put_staged(Bytes payload, const To& to) {
  serve(proto::decode_pool_put_staged(payload), &ServedPool::put_staged, to);
}
void PoolService::pool_lookup(Bytes payload, const To& to) {
  serve(proto::decode_pool_pages(payload), &ServedPool::lookup, to);
}
void PoolService::pool_drop(Bytes payload, const To& to) {
  serve(proto::decode_pool_pages(payload), &ServedPool::drop, to);
}
void PoolService::pool_forget(Bytes payload, const To& to) {
  serve(proto::decode_pool_forget(payload), &ServedPool::forget, to);
}
void PoolService::pool_write(Bytes payload, const To& to) {
  serve(proto::decode_pool_write(payload), &ServedPool::write, to);
}
void PoolService::pool_write_again(Bytes payload, const To& to) {
  serve(proto::decode_pool_write_again(payload), &ServedPool::write_again, to);
}
void PoolService::pool_synced(Bytes payload, const To& to) {
  serve(proto::decode_pool_synced(payload), &ServedPool::synced, to);
}
void PoolService::pool_stored(Bytes payload, const To& to) {
  serve(proto::decode_pool_stored(payload), &ServedPool::stored, to);
}
void PoolService::pool_checkpoint(Bytes payload, const To& to) {
  serve(proto::decode_pool_checkpoint(payload), &ServedPool::checkpoint, to);
}

// The pages go along, in memory of their own where their headers can be read.
void PoolService::pool_put(Bytes payload, const To& to) {
  auto request = proto::decode_pool_put(payload);
  if (!request.ok()) return refuse(request.status(), to);
  const PoolPtr pool = find(request->user);
  if (pool == nullptr) {
    counters_.stale_calls.fetch_add(1, std::memory_order_relaxed);
    return to->fail(error_not_found("this memory node has no pool of that stream"));
  }
  const uint64_t bytes = request->pages.size();
  auto pages = std::make_shared<AlignedBytes>(bytes);
  std::memcpy(pages->get(), request->pages.data(), bytes);
  request->pages = Bytes(pages->get(), bytes);
  if (!pool->tasks()->post(
          [pool = pool.get(), to, pages, asked = *std::move(request)] { pool->put(asked, to); },
          bytes))
    refuse_too_much(to);
}

// --- attaching ---

void PoolService::pool_attach(Bytes payload, const To& to) {
  auto request = proto::decode_pool_attach(payload);
  if (!request.ok()) return refuse(request.status(), to);
  const bool taken = parts_.offload_attach([this, to, asked = *std::move(request)] {
    const Status begun = attach(asked, to);
    if (begun.ok()) return;
    counters_.attach_refused.fetch_add(1, std::memory_order_relaxed);
    to->fail(begun);
  });
  if (!taken) refuse_too_much(to);
}

// PV1. OK: the pool answers.
Status PoolService::attach(const proto::PoolAttachRequest& request, const To& to) {
  const StatusOr<Tenants::Number> tenant = parts_.tenants->with_token(request.token);
  if (!tenant.ok()) {
    counters_.tokens_refused.fetch_add(1, std::memory_order_relaxed);
    return tenant.status();
  }
  STRATA_RETURN_IF_ERROR(parts_.check_epoch(request.user.stream, request.user.epoch));
  STRATA_ASSIGN_OR_RETURN(const PoolPtr pool, pool_for({*tenant, request.user.stream}, request));
  const bool taken =
      pool->tasks()->post([pool = pool.get(), to, request] { pool->attach(request, to); }, 0);
  return taken ? ok_status() : too_much();
}

StatusOr<PoolService::PoolPtr> PoolService::pool_for(const Key& key,
                                                     const proto::PoolAttachRequest& request) {
  {
    const MutexLock lock(mutex_);
    if (const auto found = pools_.find(key); found != pools_.end()) return found->second;
    if (request.user.incarnation != 0 && !request.fresh)
      return error_not_found("this memory node has no pool of that stream");
    if (!being_made_.insert(key).second)
      return error_busy("the pool is being made; to do: ask again in a moment");
  }
  StatusOr<PoolPtr> made = make_pool(key, request.slots_max);
  const MutexLock lock(mutex_);
  being_made_.erase(key);
  return made;
}

StatusOr<PoolService::PoolPtr> PoolService::make_pool(const Key& key, uint32_t slots_max) {
  slots_max = std::max(slots_max, kPoolSlotsMin);
  const uint32_t slots = std::min(slots_max, slots_in(parts_.tenants->left(key.tenant)));
  if (slots < std::min(slots_max, kSlotsMin))
    return error_no_space(
        "the memory node, or the quota of this tenant, has no room for a pool; to do: give it "
        "more");
  const uint64_t bytes = PoolFile::region_bytes(slots);
  STRATA_RETURN_IF_ERROR(parts_.tenants->reserve(key.tenant, bytes));
  StatusOr<PoolPtr> pool = enter(key, slots);
  if (is_wrong_database(pool.status())) {  // PV5
    const Status aside = put_aside(path_of(key));
    pool = aside.ok() ? enter(key, slots) : StatusOr<PoolPtr>(aside);
  }
  const uint64_t taken =
      pool.ok() ? (*pool)->bytes() : 0;  // a file that was there has its own size
  if (taken != bytes) {
    parts_.tenants->release(key.tenant, bytes);
    parts_.tenants->count_in(key.tenant, taken);
  }
  return pool;
}

StatusOr<PoolService::PoolPtr> PoolService::enter(const Key& key, uint32_t slots) {
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<PoolFile> file,
                          PoolFile::open({.path = path_of(key),
                                          .stream = key.stream,
                                          .node = parts_.node,

                                          .pool = {slots, parts_.reserve_slots},
                                          .persistent = parts_.persistent,
                                          .boot = {}}));
  const std::shared_ptr<transport::Region> region = file->region();
  ServedPool::Parts parts;
  parts.tenant = parts_.tenants->name(key.tenant);
  parts.stream = key.stream;
  parts.region = random_name("pool-");
  parts.file = std::move(file);
  parts.offload = parts_.offload;
  parts.stage = [this](uint32_t places) { return stage(places); };
  parts.writer = parts_.writer;
  parts.counters = &counters_;
  parts_.expose(parts.region, region, transport::RegionAccess::kReadOnly);
  auto pool = std::make_shared<ServedPool>(std::move(parts));
  const MutexLock lock(mutex_);
  pools_[key] = pool;
  return pool;
}

// Without it the calls carry the bytes.
std::shared_ptr<Staging> PoolService::stage(uint32_t places) {
  auto region = Staging::make_region(places);
  if (!region.ok()) {
    diag(Severity::kWarning, "no memory to pull pages from: %s",
         std::string(region.status().message()).c_str());
    return nullptr;
  }
  const std::string name = random_name("staging-");
  parts_.expose(name, *region, transport::RegionAccess::kReadWrite);
  return std::make_shared<Staging>(name, *std::move(region), parts_.withdraw);
}

// --- files ---

// pool-<stream>, or pool-<tenant>-<stream> where there are tenants.
std::string PoolService::path_of(const Key& key) const {
  const std::string& tenant = parts_.tenants->name(key.tenant);
  std::string path = parts_.folder + "/" + std::string(kFilePrefix);
  if (!tenant.empty()) path += tenant + "-";
  return path + std::to_string(key.stream.value);
}

std::optional<PoolService::Key> PoolService::key_of(std::string_view file) const {
  if (!file.starts_with(kFilePrefix)) return std::nullopt;
  file.remove_prefix(kFilePrefix.size());
  const size_t dash = file.rfind('-');
  const std::string_view tenant =
      dash == std::string_view::npos ? std::string_view() : file.substr(0, dash);
  const std::string_view number = dash == std::string_view::npos ? file : file.substr(dash + 1);
  Key key;
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), key.stream.value);
  const StatusOr<Tenants::Number> known = parts_.tenants->named(tenant);
  if (error != std::errc() || end != number.data() + number.size() || key.stream.is_zero() ||
      !known.ok())
    return std::nullopt;
  key.tenant = *known;
  return key;
}

Status PoolService::open_pools() {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator at(parts_.folder, error), end; !error && at != end;
       at.increment(error))
    names.push_back(at->path().filename().string());
  if (error) return error_io_error("the folder of pools " + parts_.folder + ": " + error.message());
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const std::optional<Key> key = key_of(name);
    if (key.has_value()) {
      open_pool(*key, parts_.folder + "/" + name);
    } else if (std::string_view(name).starts_with(kFilePrefix)) {
      diag(Severity::kWarning, "the pool file %s is of no tenant that this node has; it stays",
           name.c_str());
    } else if (std::string_view(name).starts_with(kAsidePrefix)) {
      counters_.files_aside.fetch_add(1, std::memory_order_relaxed);
      diag(Severity::kWarning,
           "the pool file %s is of another memory node, cluster or stream; it takes memory and is "
           "not used; to do: remove it unless that one is to have it back",
           name.c_str());
    }
  }
  return ok_status();
}

// PV5
Status PoolService::put_aside(const std::string& path) {
  const std::filesystem::path from(path);
  std::error_code error;
  std::filesystem::path to;
  for (uint32_t n = 1; to.empty() || std::filesystem::exists(to, error); ++n)
    to = from.parent_path() /
         (std::string(kAsidePrefix) + from.filename().string() + "." + std::to_string(n));
  std::filesystem::rename(from, to, error);
  if (error)
    return error_wrong_database("the pool file " + path +
                                " is of another memory node, cluster or stream, and cannot be put "
                                "aside: " +
                                error.message());
  counters_.files_aside.fetch_add(1, std::memory_order_relaxed);
  diag(Severity::kWarning,
       "the pool file %s is of another memory node, cluster or stream: it was put aside as %s; to "
       "do: remove it unless that one is to have it back",
       path.c_str(), to.filename().c_str());
  return ok_status();
}

// Its slots, if its first bytes can be read, are as many as it has; else as many as fit.
void PoolService::open_pool(const Key& key, const std::string& path) {
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  const uint32_t slots = error ? 0 : slots_in(bytes - std::min(bytes, kRegionHeaderBytes));
  StatusOr<PoolPtr> entered = error_corruption("too small for a pool");
  if (slots >= kPoolSlotsMin) entered = enter(key, slots);
  Status unusable = entered.status();
  if (is_wrong_database(unusable)) {
    unusable = put_aside(path);
    if (unusable.ok()) return;
  }
  if (!unusable.ok()) {
    counters_.damaged.fetch_add(1, std::memory_order_relaxed);
    diag(Severity::kError, "the pool file %s cannot be used: %s", path.c_str(),
         std::string(unusable.message()).c_str());
    return;
  }
  parts_.tenants->count_in(key.tenant, (*entered)->bytes());
  if (!(*entered)->found()) counters_.damaged.fetch_add(1, std::memory_order_relaxed);
}

// --- what counts for nobody ---

// PV4
void PoolService::give_back_unused(uint64_t now_us, uint64_t unused_us) {
  forget_ended();
  std::map<Key, PoolPtr> pools;
  {
    const MutexLock lock(mutex_);
    pools = pools_;
  }
  std::erase_if(seen_, [&](const auto& seen) { return !pools.contains(seen.first); });
  for (const auto& [key, pool] : pools) {
    const Seen now{pool->incarnation(), pool->uses(), now_us};
    Seen& seen = seen_.try_emplace(key, now).first->second;
    if (seen.incarnation != now.incarnation || seen.uses != now.uses) seen = now;
    if (now_us - seen.since_us < unused_us || parts_.is_named == nullptr) continue;
    // What it says holds for what was seen before: a name that comes later is of another content,
    // or comes before anything is put.
    const StatusOr<bool> named = parts_.is_named(key.stream, seen.incarnation);
    if (!named.ok() || *named) continue;
    const auto task = [this, key = key, seen] { give_back(key, seen.incarnation, seen.uses); };
    if (!pool->tasks()->post(task, 0)) continue;  // it is used, then
  }
}

// In the pool's tasks: nothing else of it runs.
void PoolService::give_back(const Key& key, uint64_t incarnation, uint64_t uses) {
  PoolPtr pool;
  {
    const MutexLock lock(mutex_);
    const auto found = pools_.find(key);
    if (found != pools_.end()) pool = found->second;
  }
  if (pool == nullptr || !pool->end_unused(incarnation, uses)) return;
  parts_.withdraw(pool->region());
  pool->remove_file();
  parts_.tenants->release(key.tenant, pool->bytes());
  counters_.unused.fetch_add(1, std::memory_order_relaxed);
  diag(Severity::kInfo,
       "the pool of stream %u is given back with its memory: the registry does not name it, and "
       "nobody uses it",
       key.stream.value);
  const MutexLock lock(mutex_);
  pools_.erase(key);
  ended_.push_back(std::move(pool));
}

void PoolService::forget_ended() {
  std::vector<PoolPtr> over;  // go without the mutex
  const MutexLock lock(mutex_);
  const auto still = std::partition(ended_.begin(), ended_.end(), [](const PoolPtr& pool) {
    return pool.use_count() > 1 || !pool->tasks()->idle();
  });
  over.assign(std::make_move_iterator(still), std::make_move_iterator(ended_.end()));
  ended_.erase(still, ended_.end());
}

ServiceStatus PoolService::status() const {
  ServiceStatus status;
  status.tenants = parts_.tenants->uses();
  const MutexLock lock(mutex_);
  for (const auto& [key, pool] : pools_) status.pools.push_back(pool->status());
  return status;
}

Status PoolService::trouble() const {
  const MutexLock lock(mutex_);
  for (const auto& [key, pool] : pools_) {
    const PoolStatus status = pool->status();
    if (!status.trouble.empty())
      return error_corruption("the pool of stream " + std::to_string(status.stream.value) +
                              " has damage: " + status.trouble);
  }
  return ok_status();
}

}  // namespace strata::memnode
