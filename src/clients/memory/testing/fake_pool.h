// A memory node for tests of clients/memory, and RemotePool to it: what memnode/pool/pool.h says of
// slots, in a map, with faults of calls as the test says. Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "clients/memory/remote_pool.h"
#include "clients/memory/testing/fake_storage.h"
#include "clients/memory/testing/pages.h"

namespace strata::clients::testing {

// What becomes of a call.
enum class Fate : uint8_t {
  kFine,
  kNotRun,     // peer_down
  kReplyLost,  // done, and nobody hears of it
  kLost,       // never done, and nobody knows
  kLate,       // the same, but it is done later
};

class FakeMemoryNode {
 public:
  struct Slot {
    uint32_t number = 0;
    uint64_t generation = 0;
    std::string page;
    Llsn llsn;
    std::optional<Lsn> dirty_from;  // PSL4
    std::optional<Lsn> own_from;    // of what came behind the image that was written
    uint64_t written = 0;           // the report; 0: it is not
  };
  struct User {
    uint64_t epoch = 0, number = 0;
    bool operator==(const User&) const = default;
    auto operator<=>(const User&) const = default;
  };

  explicit FakeMemoryNode(uint32_t slots, uint32_t reserve, FakeStorage* storage)
      : slots_(slots), reserve_(reserve), storage_(storage), generations_(slots, 0) {
    for (uint32_t i = 0; i < slots; ++i) free_.push_back(slots - 1 - i);
  }

  std::function<Fate(const char* call)> fate = [](const char*) { return Fate::kFine; };
  // Asked before a slot is read; not OK: that fails so.
  std::function<Status(PageId id)> get_fault = [](PageId) { return ok_status(); };
  // While a write to storage is under way, without the node's mutex.
  std::function<void()> in_write;

  // --- what happens to it ---
  void restart() {  // the content stays
    const std::lock_guard lock(mutex_);
    user_.reset();
    late_.clear();
    doubt();
  }
  void lose() {
    const std::lock_guard lock(mutex_);
    user_.reset();
    late_.clear();
    discard();
    incarnation_ = 0;
  }
  void flip_bit(PageId id) {
    const std::lock_guard lock(mutex_);
    pages_.at(id).page[5000] ^= 4;
  }
  void move(PageId id) {  // to another slot
    const std::lock_guard lock(mutex_);
    Slot& slot = pages_.at(id);
    const uint32_t number = free_.back();
    free_.pop_back();
    free_slot(slot);
    slot.number = number;
    generations_[number] = (generations_[number] | 1) + 1;
    slot.generation = generations_[number];
  }
  void forget(PageId id) {  // as it never should
    const std::lock_guard lock(mutex_);
    free_slot(pages_.at(id));
    pages_.erase(id);
  }
  [[nodiscard]] std::optional<Slot> slot(PageId id) const {
    const std::lock_guard lock(mutex_);
    const auto found = pages_.find(id);
    return found == pages_.end() ? std::nullopt : std::optional(found->second);
  }
  [[nodiscard]] Llsn llsn(PageId id) const {
    const auto at = slot(id);
    return at.has_value() ? at->llsn : Llsn{};
  }
  [[nodiscard]] uint64_t incarnation() const {
    const std::lock_guard lock(mutex_);
    return incarnation_;
  }
  [[nodiscard]] size_t size() const {
    const std::lock_guard lock(mutex_);
    return pages_.size();
  }
  [[nodiscard]] size_t free() const {
    const std::lock_guard lock(mutex_);
    return free_.size();
  }
  [[nodiscard]] Lsn checkpoint() const {
    const std::lock_guard lock(mutex_);
    return checkpoint_;
  }
  [[nodiscard]] Epoch checkpoint_epoch() const {
    const std::lock_guard lock(mutex_);
    return Epoch{checkpoint_epoch_};
  }
  [[nodiscard]] Lsn oldest() const {
    const std::lock_guard lock(mutex_);
    return oldest_now();
  }
  // A call that was late is done now, if it still may be.
  void do_late() {
    std::function<void()> call;
    {
      const std::lock_guard lock(mutex_);
      if (late_.empty()) return;
      call = std::move(late_.front());
      late_.pop_front();
    }
    call();
  }
  [[nodiscard]] bool has_late() const {
    const std::lock_guard lock(mutex_);
    return !late_.empty();
  }
  void add_late(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    late_.push_back(std::move(call));
  }
  std::atomic<uint64_t> puts{0}, lookups{0}, attaches{0}, gets{0}, batches{0};

 private:
  friend class FakePool;

  void discard() {
    for (const auto& [id, slot] : pages_) free_slot(slot);
    pages_.clear();
    checkpoint_ = Lsn{};
  }
  void free_slot(const Slot& slot) {
    ++generations_[slot.number];
    free_.push_back(slot.number);
  }
  void doubt() {
    for (auto& [id, slot] : pages_) {
      if (slot.written != 0) slot.own_from = slot.dirty_from;
      slot.written = 0;
    }
  }
  [[nodiscard]] Lsn oldest_now() const {
    Lsn oldest{UINT64_MAX};
    for (const auto& [id, slot] : pages_)
      if (slot.dirty_from) oldest = std::min(oldest, *slot.dirty_from);
    return oldest;
  }
  [[nodiscard]] uint64_t dirty_now() const {
    uint64_t dirty = 0;
    for (const auto& [id, slot] : pages_) dirty += slot.dirty_from.has_value();
    return dirty;
  }
  Status check(const User& user, uint64_t incarnation) const {
    if (incarnation_ == 0) return error_not_found("no pool");
    if (user < last_user_) return error_fenced("another user");
    if (!user_.has_value() || !(*user_ == user) || incarnation != incarnation_)
      return error_not_found("nobody is attached to such a pool");
    return ok_status();
  }
  proto::PoolSlot told(const Slot& slot) const {
    return {slot.number, slot.generation, slot.llsn, slot.dirty_from.has_value()};
  }

  proto::PoolPutReply::Taken put_one(const proto::PoolImage& image, const char* bytes,
                                     Lsn durable) {
    std::string page(bytes, kPageBytes);
    if (const Status status = verify_page(bytes, image.id); !status.ok())
      return {error_invalid_argument("a damaged page"), 0, 0};
    if (image.dirty && (image.first > image.end || image.end > durable))
      return {error_invalid_argument("not durable"), 0, 0};
    const Llsn llsn = llsn_of(page);
    const auto found = pages_.find(image.id);
    if (found != pages_.end() && found->second.llsn > llsn) return {error_conflict("newer"), 0, 0};
    if (found != pages_.end() && found->second.llsn == llsn) {
      Slot& slot = found->second;
      if (image.dirty && (!slot.dirty_from || *slot.dirty_from > image.first)) {
        slot.dirty_from = image.first;
        slot.own_from = image.first;
        slot.written = 0;
      }
      return {ok_status(), slot.number, slot.generation};
    }
    if (free_.size() <= (found == pages_.end() ? reserve_ : 0)) return {error_no_space(), 0, 0};
    Slot slot;
    if (found != pages_.end()) slot = found->second;
    if (image.dirty) {
      slot.own_from = slot.own_from ? std::min(*slot.own_from, image.first) : image.first;
      slot.dirty_from = slot.dirty_from ? std::min(*slot.dirty_from, image.first) : image.first;
    }
    slot.number = free_.back();
    free_.pop_back();
    if (found != pages_.end()) free_slot(found->second);
    generations_[slot.number] = (generations_[slot.number] | 1) + 1;
    slot.generation = generations_[slot.number];
    slot.llsn = llsn;
    slot.page = std::move(page);
    pages_[image.id] = slot;
    return {ok_status(), slot.number, slot.generation};
  }

  proto::PoolWriteReply write(Lsn below, uint32_t max,
                              const std::vector<proto::PoolTarget>& targets) {
    struct Work {
      Lsn from;
      PageId id;
      std::string page;
    };
    std::vector<Work> work;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [id, slot] : pages_)
        if (slot.own_from && *slot.dirty_from < below && !writing_.contains(id))
          work.push_back({*slot.dirty_from, id, slot.page});
      std::sort(work.begin(), work.end(),
                [](const Work& a, const Work& b) { return a.from < b.from; });
      if (work.size() > max) work.resize(max);
      for (const Work& one : work) writing_.insert(one.id);
    }
    if (in_write) in_write();
    proto::PoolWriteReply reply;
    bool all_ok = true;
    for (const proto::PoolTarget& target : targets) {
      proto::PoolAnswer answer{true, ok_status()};
      for (const Work& one : work)
        if (answer.status.ok()) answer = storage_->write_by_node(target, one.id, one.page);
      all_ok = all_ok && answer.status.ok();
      reply.answers.push_back(std::move(answer));
    }
    if (work.empty()) reply.answers.clear();
    const std::lock_guard lock(mutex_);
    if (all_ok && !work.empty()) ++report_;
    for (const Work& one : work) {
      writing_.erase(one.id);
      reply.pages.push_back({one.id, llsn_of(one.page)});
      const auto found = pages_.find(one.id);
      if (!all_ok || found == pages_.end()) continue;
      Slot& slot = found->second;
      if (slot.llsn != llsn_of(one.page)) continue;  // replaced meanwhile: it counts as not written
      slot.written = report_;
      slot.own_from.reset();
    }
    reply.report = report_;
    reply.oldest = oldest_now();
    reply.dirty = dirty_now();
    return reply;
  }

  const uint32_t slots_, reserve_;
  FakeStorage* const storage_;
  mutable std::mutex mutex_;
  std::map<PageId, Slot> pages_;
  std::set<PageId> writing_;
  std::vector<uint32_t> free_;
  std::vector<uint64_t> generations_;
  uint64_t incarnation_ = 0, incarnations_ = 100, report_ = 0;
  std::optional<User> user_;
  User last_user_;
  Lsn checkpoint_;
  uint64_t bias_ = 0, checkpoint_epoch_ = 0;
  std::deque<std::function<void()>> late_;
};

// One life of compute.
class FakePool final : public RemotePool {
 public:
  FakePool(FakeMemoryNode* node, uint64_t epoch) : node_(*node), epoch_(epoch) {}

  StatusOr<AttachedPool> attach(uint64_t incarnation, bool fresh, uint64_t) override {
    const FakeMemoryNode::User user{epoch_, ++number_};
    ++node_.attaches;
    const Fate fate = node_.fate("attach");
    if (fate == Fate::kNotRun) return error_peer_down("no memory node");
    if (fate == Fate::kLost || fate == Fate::kLate) return error_outcome_unknown("lost");
    while (node_.has_late() && node_.fate("late") != Fate::kFine) node_.do_late();
    const std::lock_guard lock(node_.mutex_);
    if (!(user > node_.last_user_)) return error_fenced("a later user");
    AttachedPool attached;
    if (fresh || (node_.incarnation_ == 0 && incarnation == 0)) {
      node_.discard();
      node_.incarnation_ = ++node_.incarnations_;
      attached.made = true;
    } else if (incarnation != 0 && incarnation != node_.incarnation_) {
      return error_not_found("another pool");
    }
    node_.late_.clear();  // their users are refused
    node_.doubt();
    node_.last_user_ = user;
    node_.user_ = user;
    if (fate == Fate::kReplyLost) return error_outcome_unknown("lost");
    user_ = user;
    incarnation_ = node_.incarnation_;
    attached.incarnation = node_.incarnation_;
    attached.slots = node_.slots_;
    attached.checkpoint = node_.checkpoint_;
    attached.bias = node_.bias_;
    attached.checkpoint_epoch = Epoch{node_.checkpoint_epoch_};
    return attached;
  }
  StatusOr<proto::PoolListReply> list(uint32_t from) override {
    return run<proto::PoolListReply>("list", true, [this, from] {
      proto::PoolListReply reply;
      reply.next = std::min(from + 16, node_.slots_);
      for (const auto& [id, slot] : node_.pages_)
        if (slot.number >= from && slot.number < reply.next)
          reply.pages.push_back({id, node_.told(slot)});
      return reply;
    });
  }
  StatusOr<std::vector<proto::PoolPutReply::Taken>> put(const std::vector<proto::PoolImage>& images,
                                                        Bytes pages, Lsn durable) override {
    ++node_.puts;
    return run<std::vector<proto::PoolPutReply::Taken>>(
        "put", false, [this, images, bytes = std::string(pages), durable] {
          std::vector<proto::PoolPutReply::Taken> taken;
          for (size_t i = 0; i < images.size(); ++i)
            taken.push_back(node_.put_one(images[i], bytes.data() + i * kPageBytes, durable));
          return taken;
        });
  }
  StatusOr<std::vector<proto::PoolLookupReply::Found>> lookup(
      const std::vector<PageId>& pages) override {
    ++node_.lookups;
    return run<std::vector<proto::PoolLookupReply::Found>>("lookup", true, [this, pages] {
      std::vector<proto::PoolLookupReply::Found> found;
      for (const PageId id : pages) {
        const auto at = node_.pages_.find(id);
        found.push_back(at == node_.pages_.end()
                            ? proto::PoolLookupReply::Found{}
                            : proto::PoolLookupReply::Found{true, node_.told(at->second)});
      }
      return found;
    });
  }
  StatusOr<std::vector<Status>> drop(const std::vector<PageId>& pages) override {
    return run<std::vector<Status>>("drop", false, [this, pages] {
      std::vector<Status> dropped;
      for (const PageId id : pages) {
        const auto at = node_.pages_.find(id);
        if (at == node_.pages_.end()) {
          dropped.push_back(error_not_found());
        } else if (at->second.dirty_from || node_.writing_.contains(id)) {
          dropped.push_back(error_busy());
        } else {
          node_.free_slot(at->second);
          node_.pages_.erase(at);
          dropped.push_back(ok_status());
        }
      }
      return dropped;
    });
  }
  Status forget_space(SpaceId space) override {
    return run<bool>("forget", true,
                     [this, space] {
                       for (auto at = node_.pages_.begin(); at != node_.pages_.end();) {
                         if (at->first.space != space.value) {
                           ++at;
                           continue;
                         }
                         node_.free_slot(at->second);
                         at = node_.pages_.erase(at);
                       }
                       return true;
                     })
        .status();
  }
  StatusOr<proto::PoolWriteReply> write(Lsn below, uint32_t pages_max,
                                        const std::vector<proto::PoolTarget>& targets) override {
    const Fate fate = node_.fate("write");
    if (fate == Fate::kNotRun) return error_peer_down("no memory node");
    const auto call = [this, user = user_, incarnation = incarnation_, below, pages_max,
                       targets]() -> StatusOr<proto::PoolWriteReply> {
      {
        const std::lock_guard lock(node_.mutex_);
        STRATA_RETURN_IF_ERROR(node_.check(user, incarnation));
      }
      return node_.write(below, pages_max, targets);
    };
    if (fate == Fate::kLate) node_.add_late([call] { (void)call(); });
    if (fate == Fate::kLost || fate == Fate::kLate) return error_outcome_unknown("lost");
    auto reply = call();
    if (fate == Fate::kReplyLost) return error_outcome_unknown("lost");
    return reply;
  }
  StatusOr<proto::PoolWriteAgainReply> write_again(uint32_t from,
                                                   const proto::PoolTarget& target) override {
    const Fate fate = node_.fate("write_again");
    if (fate != Fate::kFine) return error_outcome_unknown("lost");
    std::vector<std::pair<PageId, std::string>> pages;
    proto::PoolWriteAgainReply reply;
    {
      const std::lock_guard lock(node_.mutex_);
      STRATA_RETURN_IF_ERROR(node_.check(user_, incarnation_));
      reply.next = std::min(from + 16, node_.slots_);
      for (const auto& [id, slot] : node_.pages_)
        if (slot.number >= from && slot.number < reply.next && slot.written != 0)
          pages.emplace_back(id, slot.page);
    }
    reply.answer = {true, ok_status()};
    for (const auto& [id, page] : pages)
      if (reply.answer.status.ok()) reply.answer = node_.storage_->write_by_node(target, id, page);
    return reply;
  }
  StatusOr<proto::PoolSyncedReply> synced(uint64_t report) override {
    return run<proto::PoolSyncedReply>("synced", true, [this, report] {
      for (auto& [id, slot] : node_.pages_) {
        if (slot.written == 0 || slot.written > report) continue;
        slot.written = 0;
        slot.dirty_from = slot.own_from;
      }
      return proto::PoolSyncedReply{node_.oldest_now(), node_.dirty_now()};
    });
  }
  Status stored(const std::vector<StoredPage>& pages) override {
    return run<bool>("stored", true,
                     [this, pages] {
                       for (const StoredPage& page : pages) {
                         const auto at = node_.pages_.find(page.id);
                         if (at == node_.pages_.end() || at->second.llsn > page.llsn ||
                             at->second.written != 0 || node_.writing_.contains(page.id))
                           continue;
                         at->second.dirty_from.reset();
                         at->second.own_from.reset();
                       }
                       return true;
                     })
        .status();
  }
  Status checkpoint(Lsn lsn, uint64_t bias) override {
    return run<bool>("checkpoint", true,
                     [this, lsn, bias] {
                       if (std::pair(epoch_, lsn) >=
                           std::pair(node_.checkpoint_epoch_, node_.checkpoint_)) {
                         node_.checkpoint_ = lsn;
                         node_.checkpoint_epoch_ = epoch_;
                         node_.bias_ = bias;
                       }
                       return true;
                     })
        .status();
  }
  void read_slots(absl::Span<SlotRead> reads) override {
    ++node_.batches;
    for (SlotRead& read : reads) {
      ++node_.gets;
      read.status = node_.get_fault(read.id);
      if (!read.status.ok()) continue;
      const std::lock_guard lock(node_.mutex_);
      read.status = error_conflict();
      for (const auto& [id, slot] : node_.pages_) {
        if (slot.number != read.at.slot || slot.generation != read.at.generation) continue;
        std::memcpy(read.page, slot.page.data(), kPageBytes);
        read.status = verify_page(read.page, read.id);
        if (read.status.ok() && Llsn{header_of(read.page)->llsn} != read.at.llsn)
          read.status = error_corruption("another llsn");
      }
    }
  }

 private:
  // With the node's mutex held while it is done.
  template <typename Reply, typename Call>
  StatusOr<Reply> run(const char* name, bool repeats, Call call) {
    const Fate fate = node_.fate(name);
    if (fate == Fate::kNotRun || (repeats && fate != Fate::kFine))
      return error_peer_down("no memory node");
    const auto checked = [this, user = user_, incarnation = incarnation_,
                          call]() -> StatusOr<Reply> {
      const std::lock_guard lock(node_.mutex_);
      STRATA_RETURN_IF_ERROR(node_.check(user, incarnation));
      return call();
    };
    if (fate == Fate::kLate) node_.add_late([checked] { (void)checked(); });
    if (fate == Fate::kLost || fate == Fate::kLate) return error_outcome_unknown("lost");
    auto reply = checked();
    if (fate == Fate::kReplyLost) return error_outcome_unknown("lost");
    return reply;
  }

  FakeMemoryNode& node_;
  const uint64_t epoch_;
  uint64_t number_ = 0;
  FakeMemoryNode::User user_;
  uint64_t incarnation_ = 0;
};

}  // namespace strata::clients::testing
