// Storage for tests of clients/memory: pages in memory, what is durable and what is not, and the
// sessions in which a memory node may write to it. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "clients/memory/mirrored_pool.h"
#include "clients/memory/storage_below.h"
#include "clients/memory/testing/pages.h"
#include "pagefile/page_source.h"

namespace strata::clients::testing {

class FakeStorage final : public PageSource, public StorageBelow {
 public:
  // Asked before a call is carried out; not OK: it fails so.
  std::function<Status(const char* call)> fault = [](const char*) { return ok_status(); };
  // Once what was written is durable, before sync() returns.
  std::function<void()> after_sync;
  bool judge_refuses = false;      // once: a call that all have answered is not OK
  bool second_node_fails = false;  // of two, the other one

  // --- PageSource ---
  Status read(PageId id, Llsn at_least, char* page) override {
    STRATA_RETURN_IF_ERROR(tell_again());
    STRATA_RETURN_IF_ERROR(fault("read"));
    const std::lock_guard lock(mutex_);
    ++reads;
    const auto known = known_.find(id);
    const Llsn needed = known == known_.end() ? at_least : std::max(at_least, known->second);
    const auto found = pages_.find(id);
    if (found == pages_.end() && needed.is_zero()) return error_not_found("never written");
    if (found == pages_.end() || llsn_of(found->second) < needed)
      return error_corruption("storage has an old version");
    std::memcpy(page, found->second.data(), kPageBytes);
    return ok_status();
  }
  void read_batch(const PageId* ids, uint32_t count, char* pages, Status* results) override {
    ++batches;
    PageSource::read_batch(ids, count, pages, results);
  }
  Status write(PageId id, const char* page) override {
    STRATA_RETURN_IF_ERROR(tell_again());
    STRATA_RETURN_IF_ERROR(fault("write"));
    const std::lock_guard lock(mutex_);
    ++direct_writes;
    take(id, std::string(page, kPageBytes));
    unsynced_direct_[id] = std::string(page, kPageBytes);
    return ok_status();
  }
  Status sync() override {
    STRATA_RETURN_IF_ERROR(tell_again());
    STRATA_RETURN_IF_ERROR(fault("sync"));
    {
      const std::lock_guard lock(mutex_);
      ++syncs;
      durable_ = pages_;
      unsynced_direct_.clear();
    }
    if (after_sync) after_sync();
    return ok_status();
  }
  Status create_space(SpaceId space) override {
    const std::lock_guard lock(mutex_);
    spaces_.insert(space.value);
    return ok_status();
  }
  Status delete_space(SpaceId space) override {
    STRATA_RETURN_IF_ERROR(fault("delete_space"));
    const std::lock_guard lock(mutex_);
    const auto in_space = [&](const auto& of) { return of.first.space == space.value; };
    std::erase_if(pages_, in_space);
    std::erase_if(durable_, in_space);
    std::erase_if(known_, in_space);
    std::erase_if(unsynced_direct_, in_space);
    spaces_.erase(space.value);
    deleted_.insert(space.value);
    return ok_status();
  }
  StatusOr<bool> space_exists(SpaceId space) override {
    const std::lock_guard lock(mutex_);
    return spaces_.contains(space.value);
  }
  StatusOr<std::vector<SpaceId>> list_spaces() override { return std::vector<SpaceId>(); }
  Status grow_space(SpaceId, uint32_t) override { return ok_status(); }
  [[nodiscard]] bool needs_page_images() const override { return false; }

  // --- StorageBelow ---
  PageSource* pages() override { return this; }
  Status to_all_through(Through write) override {
    STRATA_RETURN_IF_ERROR(tell_again());
    STRATA_RETURN_IF_ERROR(fault("to_all_through"));
    const std::vector<proto::PoolTarget> targets = {{"a", session()}, {"b", session()}};
    const WrittenThrough done = write(targets);
    if (done.nothing_to_do) return ok_status();
    const std::vector<proto::PoolAnswer>& answers = done.answers;
    if (answers.size() != 2 || !answers[0].answered) {
      const std::lock_guard lock(mutex_);
      ++session_;  // WN3
      return error_peer_down("no storage node answered");
    }
    if (std::exchange(judge_refuses, false)) return error_peer_down("too few are in sync");
    return answers[0].status;  // the other one is out, if need be
  }
  void note_written(PageId id, Llsn llsn) override {
    const std::lock_guard lock(mutex_);
    Llsn& known = known_[id];
    known = std::max(known, llsn);
  }
  void set_write_again(WriteAgain write_again) override {
    const std::lock_guard lock(again_mutex_);
    write_again_ = std::move(write_again);
  }

  // --- what a memory node does ---
  proto::PoolAnswer write_by_node(const proto::PoolTarget& target, PageId id,
                                  const std::string& page) {
    if (target.address == "b" && second_node_fails) return {true, error_no_space("full")};
    if (const Status status = fault("write_by_node"); !status.ok()) return {true, status};
    const std::lock_guard lock(mutex_);
    if (target.session != session_) return {true, error_no_session("an old session")};
    late_write_to_deleted = late_write_to_deleted || deleted_.contains(id.space);
    take(id, page);
    return {true, ok_status()};
  }

  // --- what happens to it ---
  // What was not synced is gone. Before anything else is done it is told again.
  void restart() {
    const std::lock_guard lock(mutex_);
    pages_ = durable_;
    ++session_;
    restarted_ = true;
  }
  [[nodiscard]] std::optional<std::string> durable(PageId id) const {
    const std::lock_guard lock(mutex_);
    const auto found = durable_.find(id);
    return found == durable_.end() ? std::nullopt : std::optional(found->second);
  }
  [[nodiscard]] Llsn durable_llsn(PageId id) const {
    const auto page = durable(id);
    return page.has_value() ? llsn_of(*page) : Llsn{};
  }
  [[nodiscard]] Llsn llsn(PageId id) const {
    const std::lock_guard lock(mutex_);
    const auto found = pages_.find(id);
    return found == pages_.end() ? Llsn{} : llsn_of(found->second);
  }
  // A new life of compute knows nothing.
  void new_life() {
    const std::lock_guard lock(mutex_);
    known_.clear();
    unsynced_direct_.clear();
    restarted_ = false;
    ++session_;
  }
  [[nodiscard]] uint64_t session() const {
    const std::lock_guard lock(mutex_);
    return session_;
  }
  void put(PageId id, const std::string& page) {  // from before
    const std::lock_guard lock(mutex_);
    pages_[id] = durable_[id] = page;
  }

  std::atomic<uint64_t> reads{0}, batches{0}, direct_writes{0}, syncs{0};
  std::atomic<bool> late_write_to_deleted{false};
  std::atomic<bool> went_back{false};  // an older version was written over a newer one

 private:
  void take(PageId id, const std::string& page) {
    std::string& there = pages_[id];
    if (!there.empty() && llsn_of(there) > llsn_of(page)) went_back = true;
    there = page;
  }
  Status tell_again() {
    {
      const std::lock_guard lock(mutex_);
      if (!restarted_) return ok_status();
      for (const auto& [id, page] : unsynced_direct_)
        if (!pages_.contains(id) || llsn_of(pages_[id]) < llsn_of(page)) pages_[id] = page;
    }
    const std::lock_guard lock(again_mutex_);
    if (write_again_) {
      const proto::PoolAnswer answer = write_again_({"a", session()});
      if (!answer.answered || !answer.status.ok()) return error_peer_down("it forgot something");
    }
    const std::lock_guard again(mutex_);
    restarted_ = false;
    return ok_status();
  }

  mutable std::mutex mutex_;
  std::map<PageId, std::string> pages_, durable_, unsynced_direct_;
  std::map<PageId, Llsn> known_;
  std::set<uint32_t> spaces_, deleted_;
  uint64_t session_ = 1;
  bool restarted_ = false;
  std::recursive_mutex again_mutex_;
  WriteAgain write_again_;
};

// What the registry names: a content of a pool for each place. One thread at a time.
class FakeNames {
 public:
  explicit FakeNames(size_t places = 1) : now(places) {
    for (size_t i = 0; i < places; ++i) members_.push_back(std::make_unique<Member>(this, i));
  }
  [[nodiscard]] PoolNaming* of(size_t place) const { return members_[place].get(); }

  bool fails = false;
  bool reply_lost = false;  // of a change, which is made
  std::vector<std::optional<uint64_t>> now;
  Epoch epoch;  // of who changes it
  Epoch since;
  std::vector<PoolLoss> losses;

 private:
  class Member final : public PoolNaming {
   public:
    Member(FakeNames* of, size_t place) : of_(*of), place_(place) {}
    StatusOr<std::optional<uint64_t>> named() override {
      STRATA_RETURN_IF_ERROR(fault());
      return of_.now[place_];
    }
    Status name(uint64_t incarnation) override {
      STRATA_RETURN_IF_ERROR(fault());
      of_.now[place_] = incarnation;
      return changed();
    }
    Status remove(PoolLoss loss) override {
      STRATA_RETURN_IF_ERROR(fault());
      of_.now[place_].reset();
      of_.losses.push_back(loss);
      if (loss == PoolLoss::kUnknown) of_.since = of_.epoch;
      return changed();
    }
    [[nodiscard]] Epoch since() const override { return of_.since; }

   private:
    [[nodiscard]] Status changed() const {
      return of_.reply_lost ? error_outcome_unknown("no reply") : ok_status();
    }
    [[nodiscard]] Status fault() const {
      return of_.fails ? error_peer_down("no registry") : ok_status();
    }
    FakeNames& of_;
    const size_t place_;
  };
  std::vector<std::unique_ptr<Member>> members_;
};

// The same, of two copies. One thread at a time.
class FakeCopyNames final : public CopiesNaming {
 public:
  bool fails = false;
  bool reply_lost = false;  // of a change, which is made
  std::optional<NamedCopies> now;
  Epoch epoch;  // of who changes it
  Epoch since_now;

  StatusOr<std::optional<NamedCopies>> named() override {
    STRATA_RETURN_IF_ERROR(fault());
    return now;
  }
  Status name(const NamedCopies& copies) override {
    STRATA_RETURN_IF_ERROR(fault());
    now = copies;
    return changed();
  }
  Status remove(PoolLoss loss) override {
    STRATA_RETURN_IF_ERROR(fault());
    if (loss == PoolLoss::kUnknown && now.has_value()) since_now = epoch;
    now.reset();
    return changed();
  }
  [[nodiscard]] Epoch since() const override { return since_now; }

 private:
  [[nodiscard]] Status changed() const {
    return reply_lost ? error_outcome_unknown("no reply") : ok_status();
  }
  [[nodiscard]] Status fault() const {
    return fails ? error_peer_down("no registry") : ok_status();
  }
};

}  // namespace strata::clients::testing
