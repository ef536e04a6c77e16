// A database's log, the pages made from it and its control data, in memory: what storage nodes and
// the registry are under the profiles whose compute nodes keep nothing. One thread.
//
// It proves two things on the way: a page it hands out has at least the llsn that the kernel gave
// up last, and it equals, byte for byte, what the kernel had (but for the checksum).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/kernel_seams.h"
#include "page/page.h"
#include "pagefile/page_source.h"
#include "redo/redo.h"
#include "wal/log_sink.h"

namespace strata::engine::testing {

class LogService {
 public:
  LogService() : log_(*this), pages_(*this), control_(*this) {}

  [[nodiscard]] KernelSeams seams() {
    KernelSeams seams;
    seams.page_source = &pages_;
    seams.log_sink = &log_;
    seams.control = &control_;
    return seams;
  }
  // The compute node dies: of what it appended but did not sync a random part arrives.
  void crash(uint64_t seed) {
    if (dead_) return;
    dead_ = true;
    Rng rng(seed);
    bytes_.resize(synced_ + rng.below(bytes_.size() - synced_ + 1));
    synced_ = bytes_.size();
  }
  void revive() { dead_ = false; }

  uint64_t pages_served = 0, bytes_appended = 0;

 private:
  static constexpr uint64_t kBegin = 4096;
  [[nodiscard]] Status alive() const {
    return dead_ ? error_peer_down("the log service does not answer") : ok_status();
  }

  // --- the log ---
  class Stream final : public LogSink {
   public:
    explicit Stream(LogService& service) : s_(service) {}
    [[nodiscard]] Lsn begin_lsn() const override { return Lsn{kBegin}; }
    Status prepare_room(Lsn) override {
      room_ = true;
      return s_.alive();
    }
    [[nodiscard]] Lsn room_end() const override {
      return room_ ? Lsn{uint64_t{1} << 60} : Lsn{kBegin + s_.bytes_.size()};
    }
    Status append(Lsn at, Bytes bytes) override {
      STRATA_RETURN_IF_ERROR(s_.alive());
      EXPECT_EQ(at.value, kBegin + s_.bytes_.size()) << "appends to a stream are contiguous";
      s_.bytes_.append(bytes);
      s_.bytes_appended += bytes.size();
      return ok_status();
    }
    Status sync() override {
      STRATA_RETURN_IF_ERROR(s_.alive());
      s_.synced_ = s_.bytes_.size();
      return ok_status();
    }
    StatusOr<size_t> read(Lsn at, char* out, size_t bytes) override {
      STRATA_RETURN_IF_ERROR(s_.alive());
      const size_t from = at.value - kBegin;
      if (from >= s_.bytes_.size()) return size_t{0};
      const size_t got = std::min(bytes, s_.bytes_.size() - from);
      std::memcpy(out, s_.bytes_.data() + from, got);
      return got;
    }
    Status truncate_below(Lsn) override { return s_.alive(); }
    [[nodiscard]] bool is_stream() const override { return true; }
    Status cut_at(Lsn end) override {
      STRATA_RETURN_IF_ERROR(s_.alive());
      s_.cut(end.value - kBegin);
      return ok_status();
    }

   private:
    LogService& s_;
    bool room_ = false;
  };

  // --- the pages ---
  struct Page {
    std::string bytes = std::string(kPageBytes, '\0');
    Llsn llsn() const { return Llsn{header_of(bytes.data())->llsn}; }
  };

  class Pages final : public PageSource {
   public:
    explicit Pages(LogService& service) : s_(service) {}
    Status read(PageId id, Llsn at_least, char* page) override {
      STRATA_RETURN_IF_ERROR(s_.alive());
      return s_.read(id, at_least, page);
    }
    Status write(PageId id, const char* page) override {
      STRATA_RETURN_IF_ERROR(s_.alive());
      s_.given_up_[id].assign(page, kPageBytes);
      return ok_status();
    }
    Status sync() override { return s_.alive(); }
    Status create_space(SpaceId) override { return s_.alive(); }
    Status delete_space(SpaceId space) override {
      STRATA_RETURN_IF_ERROR(s_.alive());
      s_.deleted_.insert(space.value);
      return ok_status();
    }
    StatusOr<bool> space_exists(SpaceId space) override {
      STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> all, list_spaces());
      return std::find(all.begin(), all.end(), space) != all.end();
    }
    StatusOr<std::vector<SpaceId>> list_spaces() override {
      STRATA_RETURN_IF_ERROR(s_.alive());
      STRATA_RETURN_IF_ERROR(s_.replay());
      std::set<uint32_t> found;
      for (const auto& [id, page] : s_.made_)
        if (s_.deleted_.count(id.space) == 0) found.insert(id.space);
      std::vector<SpaceId> out;
      for (const uint32_t space : found) out.push_back(SpaceId{space});
      return out;
    }
    Status grow_space(SpaceId, uint32_t) override { return s_.alive(); }
    [[nodiscard]] bool replays_log() const override { return true; }
    void begin_at(Llsn last) override {
      s_.given_up_.clear();  // that compute node is gone
      s_.begin_ = last;
    }
    [[nodiscard]] bool needs_page_images() const override { return false; }

   private:
    LogService& s_;
  };

  class Control final : public ControlStore {
   public:
    explicit Control(LogService& service) : s_(service) {}
    [[nodiscard]] const ControlData& data() const noexcept override { return data_; }
    Status publish(const ControlData& data) override {
      STRATA_RETURN_IF_ERROR(s_.alive());
      data_ = data;
      return ok_status();
    }

   private:
    LogService& s_;
    ControlData data_;
  };

  void cut(size_t end) {
    EXPECT_LE(end, bytes_.size());
    if (end < replayed_) {  // a database that was never finished
      made_.clear();
      replayed_ = 0;
      last_llsn_ = Llsn{};
    }
    bytes_.resize(end);
    synced_ = end;
  }

  // Only what is durable is served (S1 of the design: nothing a crash could take back).
  Status replay() {
    for (;;) {
      size_t need = 0;
      const Bytes rest(bytes_.data() + replayed_, synced_ - replayed_);
      const auto group = redo::parse_group(rest, Lsn{kBegin + replayed_}, &need);
      if (!group.ok()) return ok_status();
      const Llsn llsn{group->header.llsn};
      STRATA_RETURN_IF_ERROR(redo::for_each_section(*group, [&](const redo::SectionView& section) {
        Page& page = made_[section.page_id];
        STRATA_ASSIGN_OR_RETURN(const redo::Applied applied,
                                redo::apply_section(page.bytes.data(), llsn, section));
        return applied == redo::Applied::kApplied
                   ? ok_status()
                   : error_corruption("the service's chain of a page is broken");
      }));
      last_llsn_ = llsn;
      replayed_ += group->header.length;
    }
  }

  Status read(PageId id, Llsn at_least, char* out) {
    STRATA_RETURN_IF_ERROR(replay());
    EXPECT_GE(last_llsn_, begin_) << "the log lost its end";
    const auto found = made_.find(id);
    if (found == made_.end()) return error_not_found("never written");
    EXPECT_GE(found->second.llsn(), at_least);
    if (const auto known = given_up_.find(id); known != given_up_.end()) {
      const Bytes ours = Bytes(found->second.bytes).substr(sizeof(PageHeader::crc32c));
      EXPECT_TRUE(ours == Bytes(known->second).substr(sizeof(PageHeader::crc32c)))
          << "page " << id.space << ":" << id.number << " was replayed to other bytes";
    }
    std::memcpy(out, found->second.bytes.data(), kPageBytes);
    ++pages_served;
    return ok_status();
  }

  std::string bytes_;
  size_t synced_ = 0;
  size_t replayed_ = 0;
  Llsn last_llsn_;
  Llsn begin_;
  std::atomic<bool> dead_{false};  // the log's own thread asks, too
  std::map<PageId, Page> made_;
  std::map<PageId, std::string> given_up_;
  std::set<uint32_t> deleted_;
  Stream log_;
  Pages pages_;
  Control control_;
};

}  // namespace strata::engine::testing
