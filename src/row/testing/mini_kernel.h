// The kernel below the engine, assembled for tests: log, pool, spaces, undo, transactions and a few
// trees in one space, on any file system. open() after a crash does redo and rollback as the engine
// does.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "bufpool/checkpointer.h"
#include "io/file_system.h"
#include "pagefile/local_page_source.h"
#include "redo/redo.h"
#include "row/row_store.h"
#include "wal/control_file.h"
#include "wal/local_log_sink.h"
#include "wal/log_reader.h"

namespace strata::testing {

struct MiniOptions {
  uint64_t pool_bytes = 32u << 20;
  uint32_t pool_writers = 0;
  uint32_t trees = 3;
  uint32_t tit_slots = 1u << 16;
  uint64_t log_segment_bytes = 8u << 20;
  LockAuthority* locks = nullptr;  // none: the node is alone
};

class MiniKernel {
 public:
  static constexpr SpaceId kSpace{kFirstUserSpace};
  static constexpr uint32_t kFirstIndex = 100;

  MiniKernel(FileSystem* files, const MiniOptions& options) : files_(files), options_(options) {}
  ~MiniKernel() { close(); }

  // Creates the database when there is none.
  Status open() {
    STRATA_RETURN_IF_ERROR(files_->make_directory("db"));
    auto control = ControlFile::open(files_, "db/control");
    if (is_not_found(control.status())) return create();
    STRATA_RETURN_IF_ERROR(control.status());
    control_ = std::move(control).value();
    return recover();
  }

  // Drops everything in memory; nothing is written.
  void close() {
    checkpointer_.reset();
    trxs_.reset();
    timestamps_.reset();
    waits_.reset();
    undo_.reset();
    spaces_.reset();
    pool_.reset();
    log_.reset();
    source_.reset();
    sink_.reset();
    control_.reset();
  }

  Status checkpoint() { return checkpointer_->run_once(); }
  RowContext* rows() { return &row_; }
  TrxSystem* trxs() { return trxs_.get(); }
  SpaceManager* spaces() { return spaces_.get(); }
  UndoSpace* undo() { return undo_.get(); }
  BufferPool* pool() { return pool_.get(); }
  Log* log() { return log_.get(); }
  TreeId tree(uint32_t i) const { return trees_[i]; }
  uint64_t rolled_back() const { return rolled_back_; }

  // Purges as much as views allow.
  Status purge_all() {
    for (;;) {
      STRATA_ASSIGN_OR_RETURN(const uint64_t done, purge_some(&row_, 64));
      if (done == 0) return ok_status();
    }
  }

  // As if an index build had written them (page/record.h R3): all records, or those `choose` says.
  // Nobody may be active, and everything purged.
  Status settle_all(const std::function<bool()>& choose = [] { return true; }) {
    for (const TreeId tree : trees_) {
      std::string key;
      bool more = true;
      while (more) {
        Mtr mtr(pool_.get(), log_.get());
        STRATA_RETURN_IF_ERROR(mtr.begin_write());
        TreeCursor cursor(&row_.tree, tree, &mtr);
        STRATA_RETURN_IF_ERROR(cursor.seek(key, LatchMode::kExclusive));
        STRATA_RETURN_IF_ERROR(cursor.settle(true));
        more = !cursor.at_end();
        if (!more) break;
        cursor.copy_key(&key);
        if (choose()) {
          std::string value;
          append_record_header(&value, RecordHeader{});
          value.append(record_payload(cursor.value()));
          cursor.replace(value);
        }
        key.push_back('\0');
        mtr.publish();
      }
    }
    return ok_status();
  }

  // Every tree is well formed, and no record in it belongs to an unfinished transaction when
  // `quiet`. Returns the number of records, delete-marked ones included.
  uint64_t check(bool quiet) {
    uint64_t records = 0;
    for (const TreeId tree : trees_) {
      TreeCheck result;
      const Status status = check_tree(
          &row_.tree, tree,
          [&](Bytes, Bytes value) {
            const RecordHeader header = read_record_header(value);
            if (!quiet || !header.cts.is_zero() || is_settled(value)) return;
            const auto found = trxs_->lookup(header.trx_id);
            EXPECT_TRUE(found.ok()) << found.status();
            EXPECT_TRUE(!found.ok() || found->state == TrxState::kCommitted)
                << "a record carries the id of a transaction in state "
                << static_cast<int>(found->state);
          },
          &result);
      EXPECT_TRUE(status.ok()) << status;
      for (const std::string& problem : result.problems) ADD_FAILURE() << problem;
      records += result.records;
    }
    return records;
  }

 private:
  LocalLogOptions log_options() const {
    LocalLogOptions options;
    options.directory = "db/log";
    options.database_id = 42;
    options.segment_bytes = options_.log_segment_bytes;
    return options;
  }

  Status open_source_and_pool() {
    LocalPageSourceOptions source;
    source.directory = "db/pages";
    source.direct_io = false;
    STRATA_RETURN_IF_ERROR(files_->make_directory(source.directory));
    STRATA_ASSIGN_OR_RETURN(source_, open_local_page_source(files_, source));
    BufferPoolOptions pool;
    pool.bytes = options_.pool_bytes;
    pool.writers = options_.pool_writers;
    pool.partitions = 4;
    STRATA_ASSIGN_OR_RETURN(pool_,
                            BufferPool::create(pool, source_.get(), no_page_lock(), nullptr));
    return ok_status();
  }

  void start(Lsn from, uint64_t bias) {
    log_ = std::make_unique<Log>(LogOptions{}, sink_.get(), from, bias);
    pool_->attach_log(log_.get());
    const NodeId node{1};
    spaces_ = std::make_unique<SpaceManager>(pool_.get(), log_.get(), node);
    undo_ = std::make_unique<UndoSpace>(pool_.get(), log_.get(), spaces_.get(), node);
    waits_ = std::make_unique<RowWaits>(options_.locks);
    timestamps_ = make_local_timestamp_source(pool_.get(), log_.get(), spaces_.get());
    TrxSystemOptions options;
    options.tit_slots = options_.tit_slots;
    trxs_ = std::make_unique<TrxSystem>(options, pool_.get(), log_.get(), spaces_.get(),
                                        undo_.get(), timestamps_.get(), waits_.get());
    row_ = RowContext{{pool_.get(), log_.get(), spaces_.get()}, trxs_.get(), undo_.get()};
  }

  void make_checkpointer() {
    CheckpointerOptions options;
    options.background = false;
    checkpointer_ =
        std::make_unique<Checkpointer>(options, pool_.get(), log_.get(), control_.get());
  }

  Status create() {
    ControlData data;
    data.database_id = 42;
    data.profile = "test";
    data.checkpoint_lsn = Lsn{4096};
    STRATA_RETURN_IF_ERROR(files_->make_directory("db/log"));
    STRATA_ASSIGN_OR_RETURN(sink_, create_local_log(files_, log_options(), data.checkpoint_lsn));
    STRATA_RETURN_IF_ERROR(open_source_and_pool());
    start(data.checkpoint_lsn, 0);
    STRATA_RETURN_IF_ERROR(spaces_->create(SpaceId{kSystemSpace}));
    STRATA_RETURN_IF_ERROR(spaces_->create(SpaceId{undo_space_of(NodeId{1})}));
    STRATA_RETURN_IF_ERROR(spaces_->create(kSpace));
    STRATA_RETURN_IF_ERROR(trxs_->initialise());
    for (uint32_t i = 0; i < options_.trees; ++i) {
      STRATA_RETURN_IF_ERROR(spaces_->ensure_room(kSpace, 8));
      Mtr mtr(pool_.get(), log_.get());
      STRATA_RETURN_IF_ERROR(mtr.begin_write());
      STRATA_ASSIGN_OR_RETURN(const TreeId tree,
                              create_tree(&row_.tree, &mtr, kSpace, IndexId{kFirstIndex + i}));
      trees_.push_back(tree);
      mtr.publish();
    }
    STRATA_RETURN_IF_ERROR(log_->persist(log_->next_lsn()));
    STRATA_RETURN_IF_ERROR(files_->sync_directory("db"));
    STRATA_ASSIGN_OR_RETURN(control_, ControlFile::create(files_, "db/control", data));
    make_checkpointer();
    return checkpointer_->run_once();
  }

  Status redo(Lsn* end, uint64_t* bias) {
    LogReader reader(sink_.get(), control_->data().checkpoint_lsn, control_->data().llsn_bias);
    redo::GroupView group;
    for (;;) {
      STRATA_ASSIGN_OR_RETURN(const bool more, reader.next(&group));
      if (!more) break;
      const Lsn from{group.header.lsn};
      const Lsn to{group.header.lsn + group.header.length};
      STRATA_RETURN_IF_ERROR(
          redo::for_each_section(group, [&](const redo::SectionView& section) -> Status {
            bool damaged = false;
            STRATA_ASSIGN_OR_RETURN(PageGuard guard,
                                    pool_->fix_for_redo(section.page_id, &damaged));
            if (damaged && !section.restarts_chain()) return error_corruption("torn, no image");
            STRATA_ASSIGN_OR_RETURN(
                const redo::Applied applied,
                redo::apply_section(guard.mutable_page(), Llsn{group.header.llsn}, section));
            if (applied == redo::Applied::kGap) return error_corruption("gap in a page's chain");
            if (applied == redo::Applied::kApplied)
              pool_->note_modified(guard, from, to, section.restarts_chain());
            return ok_status();
          }));
    }
    *end = reader.end_lsn();
    *bias = reader.bias();
    return reader.erase_tail();
  }

  Status recover() {
    STRATA_ASSIGN_OR_RETURN(sink_, open_local_log(files_, log_options()));
    STRATA_RETURN_IF_ERROR(open_source_and_pool());
    Lsn end;
    uint64_t bias = 0;
    STRATA_RETURN_IF_ERROR(redo(&end, &bias));
    start(end, bias);
    STRATA_RETURN_IF_ERROR(spaces_->open(SpaceId{kSystemSpace}, true));
    STRATA_RETURN_IF_ERROR(spaces_->open(SpaceId{undo_space_of(NodeId{1})}, true));
    STRATA_RETURN_IF_ERROR(spaces_->open(kSpace, true));
    make_checkpointer();
    std::vector<std::unique_ptr<Trx>> active;
    std::vector<std::unique_ptr<Trx>> prepared;
    STRATA_RETURN_IF_ERROR(trxs_->recover(&active, &prepared));
    for (auto& trx : active) STRATA_RETURN_IF_ERROR(rollback_all(&row_, trx.get()));
    rolled_back_ = active.size();
    return ok_status();
  }

  FileSystem* const files_;
  const MiniOptions options_;
  std::unique_ptr<ControlFile> control_;
  std::unique_ptr<LogSink> sink_;
  std::unique_ptr<PageSource> source_;
  std::unique_ptr<Log> log_;
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<SpaceManager> spaces_;
  std::unique_ptr<UndoSpace> undo_;
  std::unique_ptr<RowWaits> waits_;
  std::unique_ptr<TimestampSource> timestamps_;
  std::unique_ptr<TrxSystem> trxs_;
  std::unique_ptr<Checkpointer> checkpointer_;
  RowContext row_{};
  std::vector<TreeId> trees_;
  uint64_t rolled_back_ = 0;
};

}  // namespace strata::testing
