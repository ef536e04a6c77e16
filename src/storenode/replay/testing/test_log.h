// For tests: a log in memory, a writer of random redo groups, and what every page was after each.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/latch.h"
#include "base/rng.h"
#include "page/page.h"
#include "page/slotted.h"
#include "redo/redo.h"
#include "storenode/replay/log_view.h"

namespace strata::storenode::testing {

// A stream as one node has it: all of it is here, a part is quorum-durable.
class MemoryLog final : public LogView {
 public:
  static constexpr uint64_t kBegin = 4096;

  [[nodiscard]] Lsn begin_lsn() const override {
    const MutexLock lock(mutex_);
    return begin_;
  }
  [[nodiscard]] Lsn durable_lsn() const override {
    const MutexLock lock(mutex_);
    return durable_;
  }
  Status read(Lsn from, char* out, size_t bytes) override {
    const MutexLock lock(mutex_);
    EXPECT_LE(from.value + bytes, durable_.value) << "S1";
    if (from < begin_) return error_out_of_range("the log begins later");
    for (const auto& [at, end] : unreadable_)
      if (from.value < end && at < from.value + bytes)
        return error_corruption("bytes from " + std::to_string(at) + " on cannot be read");
    std::memcpy(out, bytes_.data() + (from.value - kBegin), bytes);
    bytes_read_ += bytes;
    return ok_status();
  }
  void notify_beyond(Lsn beyond, std::function<void()> notify) override {
    {
      const MutexLock lock(mutex_);
      if (durable_ <= beyond) {
        waiting_.emplace_back(beyond, std::move(notify));
        return;
      }
    }
    notify();
  }

  void append(Bytes bytes) {
    const MutexLock lock(mutex_);
    bytes_.append(bytes);
  }
  [[nodiscard]] Lsn end() const {
    const MutexLock lock(mutex_);
    return Lsn{kBegin + bytes_.size()};
  }
  void make_durable(Lsn end) {
    std::vector<std::function<void()>> due;
    {
      const MutexLock lock(mutex_);
      durable_ = std::max(durable_, end);
      for (auto it = waiting_.begin(); it != waiting_.end();) {
        if (it->first < durable_) {
          due.push_back(std::move(it->second));
          it = waiting_.erase(it);
        } else {
          ++it;
        }
      }
    }
    for (const auto& notify : due) notify();
  }
  void cut_front(Lsn begin) {
    const MutexLock lock(mutex_);
    begin_ = std::max(begin_, begin);
  }
  void flip(Lsn at) {  // damages a byte, or mends it again
    const MutexLock lock(mutex_);
    bytes_[at.value - kBegin] ^= 0x40;
  }
  void set(Lsn at, char byte) {
    const MutexLock lock(mutex_);
    bytes_[at.value - kBegin] = byte;
  }
  void make_unreadable(Lsn from, Lsn to) {
    const MutexLock lock(mutex_);
    unreadable_.emplace_back(from.value, to.value);
  }
  [[nodiscard]] uint64_t bytes_read() const {
    const MutexLock lock(mutex_);
    return bytes_read_;
  }

 private:
  mutable Mutex mutex_{LatchRank::kLogStore};  // what a node's log store takes first
  std::string bytes_;
  Lsn begin_{kBegin};
  Lsn durable_{kBegin};
  uint64_t bytes_read_ = 0;
  std::vector<std::pair<Lsn, std::function<void()>>> waiting_;
  std::vector<std::pair<uint64_t, uint64_t>> unreadable_;
};

struct WrittenSection {
  PageId page;
  std::string ops;
};

// Writes groups into a log. Remembers every version of every page, made with redo::apply_section.
class LogWriter {
 public:
  struct Group {
    Lsn begin, end;
    Llsn llsn;
    std::vector<PageId> pages;
    const MemoryLog* log = nullptr;
  };
  using Versions = std::map<uint64_t, std::string>;  // llsn -> page

  explicit LogWriter(MemoryLog* log, uint8_t node = 1) : log_(log), node_(node) {}

  // Llsns of this stream go on above `llsn` (Lamport).
  void observe(Llsn llsn) {
    const uint64_t end = log_->end().value;
    if (llsn.value > end + bias_[log_]) bias_[log_] = llsn.value - end;
  }

  Llsn write(const std::vector<WrittenSection>& sections) {
    return write_to(log_, node_, sections);
  }
  // Another node's group, in its own stream; the pages are the same.
  Llsn write_to(MemoryLog* log, uint8_t node, const std::vector<WrittenSection>& sections) {
    uint32_t length = sizeof(redo::GroupHeader);
    for (const WrittenSection& section : sections)
      length += redo::kSectionHeaderBytes + static_cast<uint32_t>(section.ops.size());
    length = (length + 7) / 8 * 8;
    redo::GroupHeader header{};
    header.magic = redo::kGroupMagic;
    header.length = length;
    header.lsn = log->end().value;
    uint64_t& bias = bias_[log];
    for (const WrittenSection& section : sections)  // Lamport
      bias = std::max(
          bias, newest(section.page).value - std::min(newest(section.page).value, header.lsn));
    header.llsn = header.lsn + length + bias;
    header.node = node;
    header.section_count = static_cast<uint16_t>(sections.size());
    std::string group(reinterpret_cast<const char*>(&header), sizeof header);
    Group made{Lsn{header.lsn}, Lsn{header.lsn + length}, Llsn{header.llsn}, {}, log};
    for (const WrittenSection& section : sections) {
      append_u32(&group, section.page.space);
      append_u32(&group, section.page.number);
      append_u64(&group, newest(section.page).value);
      append_bytes32(&group, section.ops);
      made.pages.push_back(section.page);
      remember(section, made.llsn);
    }
    group.resize(length, '\0');
    redo::seal_group(group.data());
    log->append(group);
    groups_.push_back(made);
    last_ = std::max(last_, made.llsn);
    return made.llsn;
  }

  [[nodiscard]] Llsn newest(PageId page) const {
    const auto it = pages_.find(page);
    return it == pages_.end() ? Llsn{} : Llsn{it->second.rbegin()->first};
  }
  // The page as of the llsn; null: not written yet.
  [[nodiscard]] const std::string* at(PageId page, Llsn llsn) const {
    const auto it = pages_.find(page);
    if (it == pages_.end()) return nullptr;
    const auto after = it->second.upper_bound(llsn.value);
    return after == it->second.begin() ? nullptr : &std::prev(after)->second;
  }
  [[nodiscard]] const std::map<PageId, Versions>& pages() const { return pages_; }
  [[nodiscard]] const std::vector<Group>& groups() const { return groups_; }
  // Of all streams.
  [[nodiscard]] Llsn last() const { return last_; }

  // --- contents ---
  static std::string begin_ops(Rng* rng, PageId page) {
    std::string ops;
    if (page.number % 2 == 0) {
      redo::encode_init_tree(&ops, TreePageInit{.page_id = page,
                                                .index_id = IndexId{page.number},
                                                .level = 0,
                                                .right_sibling = kNoPage,
                                                .flags = kHighIsInfinity,
                                                .low_fence = {},
                                                .high_key = {}});
    } else {
      redo::encode_init_plain(&ops, page, PageType::kUndo, IndexId{1}, rng->next());
    }
    return ops;
  }
  // A change that fits the page as it is now; sometimes one that restarts its chain.
  std::string change_ops(Rng* rng, PageId page) const {
    if (newest(page).is_zero() || rng->one_in(40)) return begin_ops(rng, page);
    if (!rng->one_in(25)) return next_ops(rng, page);
    std::string ops;
    redo::encode_image(&ops, pages_.at(page).rbegin()->second.data());
    return ops;
  }
  // A change that needs the page as it is now; of a page that is not there yet: what begins it.
  std::string next_ops(Rng* rng, PageId page) const {
    if (newest(page).is_zero()) return begin_ops(rng, page);
    const std::string& now = pages_.at(page).rbegin()->second;
    std::string ops;
    if (page.number % 2 != 0) {
      for (uint64_t count = 1 + rng->below(3); count > 0; --count) {
        const std::string bytes(1 + rng->below(100), static_cast<char>(rng->next()));
        redo::encode_write(&ops, static_cast<uint16_t>(64 + rng->below(kPageBytes - 200)), bytes);
      }
      return ops;
    }
    const TreePageView view(now.data());
    const uint16_t slots = view.slot_count();
    if (slots > 60) {
      redo::encode_erase(&ops, static_cast<uint16_t>(rng->below(slots)));
    } else {
      // Behind the last key.
      std::string key;
      append_be64(&key, slots == 0 ? 1 : load_be64(view.suffix(slots - 1).data()) + 1);
      const std::string value(40 + rng->below(60), static_cast<char>(rng->next()));
      redo::encode_insert(&ops, slots, key, value);
    }
    return ops;
  }

 private:
  void remember(const WrittenSection& section, Llsn llsn) {
    std::string page = newest(section.page).is_zero() ? std::string(kPageBytes, '\0')
                                                      : pages_.at(section.page).rbegin()->second;
    const redo::SectionView view{section.page, newest(section.page), section.ops};
    const auto applied = redo::apply_section(page.data(), llsn, view);
    ASSERT_TRUE(applied.ok()) << applied.status();
    ASSERT_EQ(*applied, redo::Applied::kApplied);
    pages_[section.page][llsn.value] = std::move(page);
  }

  MemoryLog* const log_;
  const uint8_t node_;
  std::map<const MemoryLog*, uint64_t> bias_;
  std::map<PageId, Versions> pages_;
  std::vector<Group> groups_;
  Llsn last_;
};

inline bool same_but_checksum(const char* a, const char* b) {
  return std::memcmp(a + 4, b + 4, kPageBytes - 4) == 0;
}

}  // namespace strata::storenode::testing
