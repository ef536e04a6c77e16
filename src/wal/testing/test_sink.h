// For the tests of this folder: a log sink in memory whose failures are scripted, and groups to put
// into it. Thread-safe.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "base/rng.h"
#include "redo/redo.h"
#include "wal/log.h"
#include "wal/log_sink.h"

namespace strata {

class TestSink final : public LogSink {
 public:
  explicit TestSink(Lsn start = Lsn{4096}, uint64_t room = 0) : begin_(start.value) {
    written_.resize(room);
    durable_ = written_;
  }
  Lsn begin_lsn() const override { return Lsn{begin_}; }
  Status prepare_room(Lsn end) override {
    std::lock_guard<std::mutex> lock(mutex_);
    prepare_calls_++;
    return make_room(end, capacity_);
  }
  Status prepare_reserved_room(Lsn end) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return make_room(end, capacity_ > UINT64_MAX - reserve_ ? capacity_ : capacity_ + reserve_);
  }
  Lsn room_end() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return Lsn{begin_ + written_.size()};
  }
  Status append(Lsn at, Bytes bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (fail_append_) return error_internal("append failed by test");
    EXPECT_LE(at.value - begin_ + bytes.size(), written_.size()) << "append outside of the room";
    if (appended_ != 0) {
      EXPECT_EQ(at.value, appended_) << "appends are contiguous";
    }
    appended_ = at.value + bytes.size();
    std::memcpy(written_.data() + (at.value - begin_), bytes.data(), bytes.size());
    return ok_status();
  }
  Status sync() override {
    while (hold_sync_.load()) std::this_thread::yield();
    std::lock_guard<std::mutex> lock(mutex_);
    if (fail_sync_) return error_internal("sync failed by test");
    sync_count_++;
    durable_ = written_;
    return ok_status();
  }
  Status late() const override {
    return late_.load() ? error_peer_down("late by test") : ok_status();
  }
  StatusOr<size_t> read(Lsn at, char* out, size_t bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t offset = at.value - begin_;
    if (offset >= written_.size()) return size_t{0};
    const size_t got = std::min<size_t>(bytes, written_.size() - offset);
    std::memcpy(out, written_.data() + offset, got);
    return got;
  }
  Status truncate_below(Lsn) override { return ok_status(); }
  [[nodiscard]] bool is_stream() const override { return stream_; }
  Status cut_at(Lsn end) override {
    std::lock_guard<std::mutex> lock(mutex_);
    written_.resize(end.value - begin_);
    durable_ = written_;
    appended_ = end.value;
    return ok_status();
  }

  void crash_to_durable() {
    std::lock_guard<std::mutex> lock(mutex_);  // a log that is still there may make room
    written_ = durable_;
    appended_ = 0;
  }
  std::string& bytes() { return written_; }  // once no log is left

  uint64_t capacity_ = UINT64_MAX;
  uint64_t reserve_ = 0;  // beyond the capacity, for prepare_reserved_room()
  bool stream_ = false;
  bool fail_append_ = false, fail_sync_ = false;
  std::atomic<bool> hold_sync_{false};
  std::atomic<bool> late_{false};
  std::atomic<uint64_t> sync_count_{0}, prepare_calls_{0};

 private:
  Status make_room(Lsn end, uint64_t capacity) {
    if (end.value - begin_ > capacity) return error_no_space("test sink is full");
    if (end.value - begin_ > written_.size()) {
      written_.resize(end.value - begin_);
      durable_.resize(end.value - begin_);
    }
    return ok_status();
  }

  mutable std::mutex mutex_;
  uint64_t begin_;
  uint64_t appended_ = 0;
  std::string written_, durable_;
};

// A whole group for `r`: one section whose ops are `payload` (not real ops: the log does not look).
inline std::string make_test_group(const LogReservation& r, Bytes payload) {
  std::string group(sizeof(redo::GroupHeader), '\0');
  append_u64(&group, 7);  // page id
  append_u64(&group, 0);  // prev_llsn
  append_bytes32(&group, payload);
  group.resize((group.size() + 7) / 8 * 8, '\0');
  redo::GroupHeader h{};
  h.magic = redo::kGroupMagic;
  h.length = static_cast<uint32_t>(group.size());
  h.durable_delta = static_cast<uint32_t>(r.start.value - r.durable.value);
  h.lsn = r.start.value;
  h.llsn = r.llsn.value;
  h.node = 1;
  h.section_count = 1;
  std::memcpy(group.data(), &h, sizeof(h));
  redo::seal_group(group.data());
  return group;
}
inline uint32_t test_group_bytes(size_t payload) {
  return static_cast<uint32_t>(
      (sizeof(redo::GroupHeader) + redo::kSectionHeaderBytes + payload + 7) / 8 * 8);
}
// The payload again.
inline std::string payload_of(const redo::GroupView& group) {
  std::string payload;
  EXPECT_TRUE(redo::for_each_section(group, [&](const redo::SectionView& s) {
                payload = std::string(s.ops);
                return ok_status();
              }).ok());
  return payload;
}

// Capacity, reservation, copy and completion of one group. `above`: see Log::reserve.
inline StatusOr<LogReservation> write_test_group(Log* log, Bytes payload, Llsn above = Llsn{},
                                                 bool urgent = false) {
  const uint32_t bytes = test_group_bytes(payload.size());
  STRATA_RETURN_IF_ERROR(log->reserve_capacity(bytes + 64, urgent));
  LogReservation r;
  while (!log->reserve(bytes, log->image_floor(), above, &r)) {
  }
  log->copy(r, make_test_group(r, payload));
  log->complete(r);
  log->return_capacity(64);
  return r;
}

}  // namespace strata
