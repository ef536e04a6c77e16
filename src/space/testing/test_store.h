// A whole small store for tests: simulated disk, log, page source, pool, spaces. crash() loses what
// was not synced; recover() brings the store back by redo. One thread unless a test says otherwise.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "bufpool/buffer_pool.h"
#include "bufpool/checkpointer.h"
#include "io/file_system.h"
#include "pagefile/local_page_source.h"
#include "redo/redo.h"
#include "space/space_manager.h"
#include "wal/local_log_sink.h"
#include "wal/log.h"
#include "wal/log_reader.h"

namespace strata::testing {

struct TestStoreOptions {
  uint32_t frames = 64;
  uint32_t writers = 0;
  uint32_t log_segment_bytes = 4u << 20;
};

class TestStore {
 public:
  using Options = TestStoreOptions;
  static constexpr uint64_t kLogStart = 4096;

  explicit TestStore(Options options = {}) : options_(options), fs_(make_sim_file_system()) {
    EXPECT_TRUE(fs_->make_directory("data").ok());
    EXPECT_TRUE(fs_->make_directory("log").ok());
    auto made = create_local_log(fs_.get(), log_options(), Lsn{kLogStart});
    EXPECT_TRUE(made.ok()) << made.status();
    sink_ = std::move(*made);
    auto control = ControlFile::create(
        fs_.get(), "data/control",
        {.database_id = kDatabaseId, .profile = "test", .checkpoint_lsn = Lsn{kLogStart}});
    EXPECT_TRUE(control.ok()) << control.status();
    control_ = std::move(*control);
    open_pool();
    open_log(Lsn{kLogStart}, 0);
  }
  ~TestStore() { close(); }

  BufferPool* pool() { return pool_.get(); }
  Log* log() { return log_.get(); }
  SpaceManager* spaces() { return spaces_.get(); }
  PageSource* source() { return source_.get(); }
  SimFileSystem* fs() { return fs_.get(); }
  // End of the log as the last recovery found it: groups that end at or before it happened.
  [[nodiscard]] Lsn recovered_end() const { return recovered_end_; }

  Status checkpoint() { return checkpointer_->run_once(); }
  Status persist_all() { return log_->persist(log_->next_lsn()); }

  void crash(uint64_t seed) {
    fs_->crash(seed);
    close();
  }

  // Redo from the checkpoint on; spaces have to be opened afterwards.
  Status recover() {
    STRATA_ASSIGN_OR_RETURN(control_, ControlFile::open(fs_.get(), "data/control"));
    STRATA_ASSIGN_OR_RETURN(sink_, open_local_log(fs_.get(), log_options()));
    open_pool();
    LogReader reader(sink_.get(), control_->data().checkpoint_lsn, control_->data().llsn_bias);
    redo::GroupView group;
    for (;;) {
      const Lsn start = reader.end_lsn();
      STRATA_ASSIGN_OR_RETURN(const bool more, reader.next(&group));
      if (!more) break;
      STRATA_RETURN_IF_ERROR(redo::for_each_section(group, [&](const redo::SectionView& section) {
        return redo_section(section, start, reader.end_lsn(), Llsn{group.header.llsn});
      }));
    }
    STRATA_RETURN_IF_ERROR(reader.erase_tail());
    recovered_end_ = reader.end_lsn();
    open_log(recovered_end_, std::max(reader.bias(), control_->data().llsn_bias));
    return ok_status();
  }

  // Every page as a replay of the whole log (which was never truncated) makes it from nothing.
  std::map<PageId, std::string> replay_from_nothing() {
    EXPECT_TRUE(persist_all().ok());
    std::map<PageId, std::string> pages;
    LogReader reader(sink_.get(), Lsn{kLogStart});
    redo::GroupView group;
    for (;;) {
      const StatusOr<bool> more = reader.next(&group);
      EXPECT_TRUE(more.ok()) << more.status();
      if (!more.ok() || !*more) break;
      const Status applied = redo::for_each_section(group, [&](const redo::SectionView& s) {
        std::string& page = pages[s.page_id];
        if (page.empty()) page.assign(kPageBytes, '\0');
        STRATA_ASSIGN_OR_RETURN(const redo::Applied how,
                                redo::apply_section(page.data(), Llsn{group.header.llsn}, s));
        return how == redo::Applied::kApplied ? ok_status() : error_corruption("gap");
      });
      EXPECT_TRUE(applied.ok()) << applied;
    }
    EXPECT_EQ(reader.end_lsn(), log_->next_lsn());
    return pages;
  }
  // The property: replayed bytes are the bytes in the store, the checksum aside.
  void expect_replay_is_identical() {
    const auto replayed = replay_from_nothing();
    EXPECT_TRUE(pool_->write_back_below(log_->next_lsn()).ok());
    auto bytes = std::make_unique<char[]>(kPageBytes);
    for (const auto& [id, page] : replayed) {
      const Status read = source_->read(id, Llsn{}, bytes.get());
      ASSERT_TRUE(read.ok()) << read;
      ASSERT_EQ(std::memcmp(bytes.get() + 4, page.data() + 4, kPageBytes - 4), 0)
          << "page " << id.space << ":" << id.number;
    }
  }

 private:
  static constexpr uint64_t kDatabaseId = 77;

  [[nodiscard]] LocalLogOptions log_options() const {
    return {.directory = "log",
            .node = NodeId{1},
            .database_id = kDatabaseId,
            .segment_bytes = options_.log_segment_bytes};
  }
  void open_pool() {
    auto source = open_local_page_source(fs_.get(), {.directory = "data", .direct_io = false});
    EXPECT_TRUE(source.ok()) << source.status();
    source_ = std::move(*source);
    auto pool = BufferPool::create({.bytes = uint64_t{options_.frames} * kPageBytes,
                                    .partitions = options_.frames >= 256 ? 4u : 1u,
                                    .old_time_us = 1000,
                                    .writers = options_.writers},
                                   source_.get(), no_page_lock(), nullptr);
    EXPECT_TRUE(pool.ok()) << pool.status();
    pool_ = std::move(*pool);
  }
  void open_log(Lsn end, uint64_t bias) {
    log_ = std::make_unique<Log>(LogOptions{.buffer_bytes = 8u << 20, .node = NodeId{1}},
                                 sink_.get(), end, bias);
    pool_->attach_log(log_.get());
    spaces_ = std::make_unique<SpaceManager>(pool_.get(), log_.get(), NodeId{1});
    checkpointer_ = std::make_unique<Checkpointer>(CheckpointerOptions{.background = false},
                                                   pool_.get(), log_.get(), control_.get());
  }
  void close() {
    checkpointer_.reset();
    spaces_.reset();
    pool_.reset();
    log_.reset();
    source_.reset();
    sink_.reset();
    control_.reset();
  }
  Status redo_section(const redo::SectionView& section, Lsn start, Lsn end, Llsn llsn) {
    bool damaged = false;
    STRATA_ASSIGN_OR_RETURN(PageGuard guard, pool_->fix_for_redo(section.page_id, &damaged));
    if (damaged && !section.restarts_chain())
      return error_corruption("a damaged page is not restarted by its first section");
    STRATA_ASSIGN_OR_RETURN(const redo::Applied how,
                            redo::apply_section(guard.mutable_page(), llsn, section));
    if (how == redo::Applied::kGap)
      return error_corruption("gap in the chain of page " + std::to_string(section.page_id.space) +
                              ":" + std::to_string(section.page_id.number));
    if (how == redo::Applied::kApplied)
      pool_->note_modified(guard, start, end, section.restarts_chain());
    return ok_status();
  }

  const Options options_;
  std::unique_ptr<SimFileSystem> fs_;
  std::unique_ptr<LogSink> sink_;
  std::unique_ptr<PageSource> source_;
  std::unique_ptr<ControlFile> control_;
  std::unique_ptr<Log> log_;
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<SpaceManager> spaces_;
  std::unique_ptr<Checkpointer> checkpointer_;
  Lsn recovered_end_;
};

}  // namespace strata::testing
