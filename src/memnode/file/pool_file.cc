#include "memnode/file/pool_file.h"

#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"
#include "transport/secret.h"

namespace strata::memnode {
namespace {

using transport::Region;

constexpr uint64_t kRegionEpoch = 1;  // the file is never replaced to shut somebody out

// The machine's: 32 hexadecimal digits. Zeroes, which are nobody's, if it does not tell.
Boot boot_of_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  std::erase(text, '-');
  Boot boot{};
  for (size_t i = 0; i < boot.size(); i++) {
    const char* const begin = text.data() + std::min(text.size(), 16 * i);
    const char* const end = text.data() + std::min(text.size(), 16 * i + 16);
    if (std::from_chars(begin, end, boot[i], 16).ptr != end || end - begin != 16) return Boot{};
  }
  return boot;
}

void say_discarded(const std::string& path, const Status& why) {
  diag(Severity::kWarning, "pool file %s: what was in it is discarded: %s", path.c_str(),
       std::string(why.message()).c_str());
}

// For so many slots; one of that name is replaced.
StatusOr<std::shared_ptr<Region>> make_region(const PoolFileOptions& options) {
  STRATA_ASSIGN_OR_RETURN(
      std::unique_ptr<Region> region,
      Region::create(options.path, PoolFile::region_bytes(options.pool.slots), kRegionEpoch));
  return std::shared_ptr<Region>(std::move(region));
}

// MF6. Its peers have descriptors of their own (RegionAccess::kReadOnly), which hold no lock.
Status lock_file(const Region& region, const std::string& path) {
  if (::flock(region.fd(), LOCK_EX | LOCK_NB) == 0) return ok_status();
  return error_in_use("another process uses the pool file " + path);
}

// Whose the region's bytes are. kNotFound: nobody's yet.
StatusOr<StateRecords::Owner> owner_of(const Region& region) {
  if (region.bytes() < kStateBytes) return error_corruption("too small for a pool");
  STRATA_ASSIGN_OR_RETURN(const StateRecords::Owner owner, StateRecords(region.data()).owner());
  if (owner.slots < kPoolSlotsMin || PoolFile::region_bytes(owner.slots) != region.bytes())
    return error_corruption("a pool of another size");
  return owner;
}

}  // namespace

PoolFile::PoolFile(const PoolFileOptions& options, std::shared_ptr<Region> region, uint32_t slots)
    : options_([&] {
        PoolFileOptions used = options;
        used.pool.slots = slots;
        used.pool.persistent = options.persistent;
        return used;
      }()),
      region_(std::move(region)),
      slots_(slots),
      boot_(options.boot.value_or(boot_of_machine())),
      state_(region_->data()) {}

StatusOr<std::unique_ptr<PoolFile>> PoolFile::open(const PoolFileOptions& options) {
  STRATA_ASSERT(options.pool.slots >= kPoolSlotsMin);
  std::shared_ptr<Region> region;
  StatusOr<StateRecords::Owner> owner = error_not_found();
  StatusOr<std::unique_ptr<Region>> there = Region::open(options.path);
  if (there.ok()) {
    region = *std::move(there);
    STRATA_RETURN_IF_ERROR(lock_file(*region, options.path));
    owner = owner_of(*region);
    if (owner.ok() && (owner->stream != options.stream || owner->node != options.node))
      return error_wrong_database("pool file " + options.path +
                                  " is of another memory node, cluster or stream");
  } else if (is_corruption(there.status())) {
    owner = there.status();
  } else if (!is_not_found(there.status())) {
    return there.status();
  }
  if (owner.ok()) {
    auto file = std::unique_ptr<PoolFile>(new PoolFile(options, std::move(region), owner->slots));
    STRATA_RETURN_IF_ERROR(file->use_what_is_there());
    return file;
  }
  if (is_corruption(owner.status())) say_discarded(options.path, owner.status());
  const uint32_t slots = options.pool.slots;
  // MF1: in the same file, if that one serves.
  if (region == nullptr || region->bytes() != region_bytes(slots)) {
    STRATA_ASSIGN_OR_RETURN(region, make_region(options));
    STRATA_RETURN_IF_ERROR(lock_file(*region, options.path));
  }
  auto file = std::unique_ptr<PoolFile>(new PoolFile(options, std::move(region), slots));
  file->state_.begin({.stream = options.stream, .node = options.node, .slots = options.pool.slots});
  STRATA_RETURN_IF_ERROR(file->discard());
  return file;
}

PoolMemory PoolFile::memory() const noexcept {
  return {reinterpret_cast<SlotHeader*>(region_->data() + headers_at()),
          region_->data() + pages_at()};
}

Status PoolFile::use_what_is_there() {
  incarnation_ = state_.incarnation();
  if (incarnation_ == 0) return discard();  // killed while it began, or emptied
  const bool of_this_boot = state_.boot() == boot_ && boot_ != Boot{};
  if (!of_this_boot && !(state_.persistent() && persistent())) {  // MF5
    say_discarded(options_.path, error_corruption("it is from before the machine's last start"));
    return discard();
  }
  StatusOr<std::unique_ptr<Pool>> recovered = Pool::recover(options_.pool, memory());
  if (!recovered.ok()) {  // MF2
    say_discarded(options_.path, recovered.status());
    return discard();
  }
  pool_ = *std::move(recovered);
  found_ = true;
  const Status kept = keep_found();
  if (!kept.ok()) end_content();  // MF7
  return kept;
}

// MF5: it says so before anything changes that is not made durable, and after everything is.
Status PoolFile::keep_found() {
  if (state_.persistent()) {
    state_.set_incarnation(incarnation_, boot_, persistent());
    STRATA_RETURN_IF_ERROR(sync(kStateBytes));
  }
  STRATA_RETURN_IF_ERROR(persist());
  if (persistent() && !state_.persistent()) {
    state_.set_incarnation(incarnation_, boot_, true);
    STRATA_RETURN_IF_ERROR(persist());
  }
  pool_->persisted();
  return ok_status();
}

void PoolFile::end_content() {
  incarnation_ = 0;
  state_.set_incarnation(0, {}, false);
}

// A process that is killed before the next step leaves a file without content.
void PoolFile::begin_content() {
  pool_ = std::make_unique<Pool>(options_.pool, memory());
  found_ = false;
}

void PoolFile::name_content() {
  do {
    transport::system_entropy()->fill(reinterpret_cast<char*>(&incarnation_), sizeof incarnation_);
  } while (incarnation_ == 0);
  state_.set_incarnation(incarnation_, boot_, persistent());
}

Status PoolFile::discard() {
  end_content();
  STRATA_RETURN_IF_ERROR(persist());
  begin_content();
  STRATA_RETURN_IF_ERROR(persist());
  name_content();
  const Status named = persist();
  if (!named.ok()) end_content();  // MF7
  return named;
}

Status PoolFile::persist() const { return persistent() ? sync(region_->bytes()) : ok_status(); }

// So many bytes from the beginning.
Status PoolFile::sync(uint64_t bytes) const {
  const Status synced = region_->persist(0, bytes);
  if (synced.ok()) return synced;
  return error_io_error("the pool file " + options_.path +
                        " cannot be made durable: " + std::string(synced.message()));
}

void PoolFile::remove() const {
  if (::unlink(options_.path.c_str()) != 0 && errno != ENOENT)
    diag(Severity::kWarning, "the pool file %s cannot be removed: %s", options_.path.c_str(),
         std::strerror(errno));
  region_->give_back();
}

Status PoolFile::accept(const StateRecords::User& user) {
  if (user <= state_.user()) return error_fenced("the pool has had that user, or a later one");
  state_.set_user(user);
  return ok_status();
}

Status PoolFile::set_checkpoint(const StateRecords::Checkpoint& checkpoint) {
  const StateRecords::Checkpoint last = state_.checkpoint();
  if (std::pair(checkpoint.epoch, checkpoint.lsn) < std::pair(last.epoch, last.lsn))
    return error_conflict("a later checkpoint is known");
  if (checkpoint != last) state_.set_checkpoint(checkpoint);
  return ok_status();
}

}  // namespace strata::memnode
