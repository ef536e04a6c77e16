// For tests of LogStore: a store on a simulated disk that can crash, fail and be full, and what one
// stream of it should hold.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/diag.h"
#include "storenode/logstore/log_store.h"
#include "storenode/logstore/testing/faulty_file_system.h"
#include "storenode/logstore/testing/sync_store.h"

namespace strata::testing {

constexpr StreamId kStream{7};

inline quorum::Tenure tenure(uint64_t epoch, uint64_t start, quorum::History history = {},
                             uint64_t base = 0) {
  quorum::Tenure t;
  t.holder = {Epoch{epoch}, epoch * 1000};
  t.start = Lsn{start};
  t.base = history.empty() ? t.start : Lsn{base};
  t.history = std::move(history);
  return t;
}
inline quorum::History history(std::initializer_list<std::pair<uint64_t, uint64_t>> entries) {
  quorum::History h;
  for (const auto& [epoch, start] : entries) h.push_back({Epoch{epoch}, Lsn{start}});
  return h;
}
inline std::string text(size_t bytes, char first = 'a') {
  std::string out(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(first + i % 23);
  return out;
}
inline bool has(const Status& status, const std::string& part) {
  return std::string(status.message()).find(part) != std::string::npos;
}

struct LogStoreTest : ::testing::Test {
  void SetUp() override {
    set_diag_sink([](Severity, std::string_view) {});
    options.directory = "/node";
    options.cluster_id = 42;
    options.segment_bytes = 4096 + 8192;
    options.chunk_bytes_max = 2000;
    options.spare_segments_max = 2;
    open();
  }
  void open() {
    store.reset();
    store = std::make_unique<SyncStore>(&faulty, options);
  }
  void crash(uint64_t seed = 1) {
    fs->crash(seed);
    open();
  }
  // Begins epoch 1 at 0.
  void start() { ASSERT_TRUE(store->begin(kStream, tenure(1, 0)).status.ok()); }
  void write(uint64_t bytes) {
    const uint64_t end = store->state(kStream).end.value;
    content.resize(end);
    content += text(bytes, static_cast<char>('a' + end % 7));
    const quorum::ChangeReply r =
        store->append(kStream, Epoch{1}, Lsn{end}, content.substr(end), Lsn{end});
    ASSERT_TRUE(r.status.ok()) << r.status;
    ASSERT_EQ(r.state.end.value, end + bytes);
  }
  std::vector<std::string> names(const std::string& prefix) {
    std::vector<std::string> found;
    const auto listed = fs->list("/node");
    EXPECT_TRUE(listed.ok());
    for (const std::string& name : *listed)
      if (name.rfind(prefix, 0) == 0) found.push_back("/node/" + name);
    return found;
  }
  void expect_content(uint64_t from = 0) {
    Epoch promised = store->state(kStream).promised;
    const auto got = store->read(kStream, Lsn{from}, Lsn{content.size()}, promised);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(*got == content.substr(from));
  }

  std::unique_ptr<SimFileSystem> fs = make_sim_file_system();
  FaultyFileSystem faulty{fs.get()};
  LogStoreOptions options;
  std::unique_ptr<SyncStore> store;
  std::string content;  // of kStream
};

}  // namespace strata::testing
