#include "wal/local_log_sink.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/crc32c.h"
#include "base/diag.h"
#include "base/fault.h"
#include "base/latch.h"
#include "io/block_writer.h"

namespace strata {
namespace {

constexpr uint64_t kSegmentMagic = 0x3147455341525453ull;  // "STRASEG1"
constexpr uint32_t kSegmentFormat = 1;
constexpr uint64_t kHeaderBytes = BlockWriter::kBlock;
constexpr uint64_t kFillChunkBytes = 256u << 10;

struct SegmentHeader {
  uint64_t magic;
  uint32_t format;
  uint32_t crc32c;  // of everything behind it
  uint64_t database_id;
  uint64_t start_lsn;
  uint64_t bytes;  // of the file
  uint8_t node;
  uint8_t pad[7];
};
static_assert(sizeof(SegmentHeader) == 48);
constexpr size_t kCrcBegin = offsetof(SegmentHeader, database_id);

uint32_t header_crc(const SegmentHeader& h) noexcept {
  return crc32c(reinterpret_cast<const char*>(&h) + kCrcBegin, sizeof(h) - kCrcBegin);
}

struct Segment {
  std::string path;
  uint64_t start = 0;              // Lsn of the first data byte
  std::unique_ptr<File> direct;    // written through
  std::unique_ptr<File> buffered;  // read through
};
using SegmentPtr = std::shared_ptr<Segment>;

std::string log_prefix(NodeId node) {
  char name[32];
  std::snprintf(name, sizeof(name), "log-%02x-", node.value);
  return name;
}
std::string spare_prefix(NodeId node) {
  char name[32];
  std::snprintf(name, sizeof(name), "spare-%02x-", node.value);
  return name;
}
bool has_form(const std::string& name, const std::string& prefix) {
  return name.size() > prefix.size() + 4 && name.compare(0, prefix.size(), prefix) == 0 &&
         name.compare(name.size() - 4, 4, ".seg") == 0;
}
// False when the name is not that of a segment of this node.
bool parse_segment_name(const std::string& name, NodeId node, uint64_t* start) {
  const std::string prefix = log_prefix(node);
  if (!has_form(name, prefix) || name.size() != prefix.size() + 16 + 4) return false;
  char* end = nullptr;
  *start = std::strtoull(name.c_str() + prefix.size(), &end, 16);
  return end == name.c_str() + prefix.size() + 16;
}

class LocalLogSink final : public LogSink {
 public:
  LocalLogSink(FileSystem* fs, const LocalLogOptions& options) : fs_(fs), options_(options) {
    STRATA_ASSERT(options.segment_bytes % BlockWriter::kBlock == 0 &&
                  options.segment_bytes > kHeaderBytes);
  }

  Status create(Lsn start);
  Status open();

  Lsn begin_lsn() const override {
    MutexLock lock(list_mutex_);
    return Lsn{segments_.front()->start};
  }
  Lsn room_end() const override {
    MutexLock lock(list_mutex_);
    return Lsn{segments_.back()->start + data_bytes()};
  }
  Status prepare_room(Lsn end) override { return prepare(end, options_.reserve_segments); }
  Status prepare_reserved_room(Lsn end) override { return prepare(end, 0); }
  Status give_up_reserve() override;
  void hurry() noexcept override;
  Status append(Lsn at, Bytes bytes) override;
  Status sync() override;
  StatusOr<size_t> read(Lsn at, char* out, size_t bytes) override;
  Status truncate_below(Lsn lsn) override;
  std::string locate(Lsn lsn) const override;

 private:
  uint64_t data_bytes() const noexcept { return options_.segment_bytes - kHeaderBytes; }
  std::string path_of(const std::string& name) const { return options_.directory + "/" + name; }
  std::string segment_path(uint64_t start) const {
    char hex[24];
    std::snprintf(hex, sizeof(hex), "%016llx.seg", static_cast<unsigned long long>(start));
    return path_of(log_prefix(options_.node) + hex);
  }
  std::string next_spare_path() STRATA_REQUIRES(room_mutex_) {
    return path_of(spare_prefix(options_.node) + std::to_string(++spare_sequence_) + ".seg");
  }
  SegmentPtr find(uint64_t lsn) const;  // null when outside
  Status prepare(Lsn end, size_t keep);
  Status make_segment(uint64_t start, size_t keep) STRATA_REQUIRES(room_mutex_);
  Status open_files(Segment* segment);
  StatusOr<std::unique_ptr<File>> open_direct(const std::string& path, bool create) {
    return fs_->open(path, {.create = create, .exclusive = create, .direct = options_.direct_io});
  }
  Status make_spare(bool fill) STRATA_REQUIRES(room_mutex_);
  Status fill_spare(const std::string& path, bool fill);
  void pause_filling();
  Status write_header(File* file, uint64_t start);
  Status load_segment(const std::string& path, uint64_t start, SegmentPtr* out);
  void forget_before_hole(std::vector<SegmentPtr>* segments) STRATA_REQUIRES(room_mutex_);
  Status adopt_spares(const std::vector<std::string>& names) STRATA_REQUIRES(room_mutex_);

  FileSystem* const fs_;
  const LocalLogOptions options_;
  Mutex room_mutex_{LatchRank::kLogWrite};  // held over I/O; makes and recycles segments
  std::vector<std::string> spares_ STRATA_GUARDED_BY(room_mutex_);  // paths
  uint64_t spare_sequence_ STRATA_GUARDED_BY(room_mutex_) = 0;
  std::vector<std::string> before_hole_ STRATA_GUARDED_BY(room_mutex_);  // paths
  Mutex hurry_mutex_{LatchRank::kLeaf};
  CondVar hurried_;
  bool in_a_hurry_ STRATA_GUARDED_BY(hurry_mutex_) = true;  // the first segment is waited for
  std::string missing_;                                     // the hole; written by open() only
  mutable Mutex list_mutex_{LatchRank::kFileTable};
  // contiguous, in order, never empty
  std::vector<SegmentPtr> segments_ STRATA_GUARDED_BY(list_mutex_);
  // Owned by the group commit leader.
  SegmentPtr appending_;
  BlockWriter writer_;
  std::vector<SegmentPtr> unsynced_;  // written by append() since the last sync()
};

SegmentPtr LocalLogSink::find(uint64_t lsn) const {
  MutexLock lock(list_mutex_);
  const uint64_t begin = segments_.front()->start;
  if (lsn < begin) return nullptr;
  const uint64_t index = (lsn - begin) / data_bytes();
  return index < segments_.size() ? segments_[index] : nullptr;
}

std::string LocalLogSink::locate(Lsn lsn) const {
  const SegmentPtr segment = find(lsn.value);
  if (segment == nullptr) return LogSink::locate(lsn);
  return "log segment " + segment->path + ", byte " +
         std::to_string(kHeaderBytes + lsn.value - segment->start) + " (lsn " +
         std::to_string(lsn.value) + ")";
}

// --- making segments ---

Status LocalLogSink::create(Lsn start) {
  STRATA_RETURN_IF_ERROR(fs_->make_directory(options_.directory));
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->list(options_.directory));
  for (const std::string& name : names) {
    uint64_t found = 0;
    if (parse_segment_name(name, options_.node, &found))
      return error_duplicate_key("a log exists already: " + path_of(name));
  }
  MutexLock lock(room_mutex_);
  STRATA_RETURN_IF_ERROR(adopt_spares(names));
  const Status made = make_segment(start.value, 0);
  const MutexLock hurry_lock(hurry_mutex_);
  in_a_hurry_ = false;
  return made;
}

Status LocalLogSink::prepare(Lsn end, size_t keep) {
  MutexLock lock(room_mutex_);
  Status made;
  for (uint64_t room = room_end().value; room < end.value && made.ok(); room += data_bytes())
    made = make_segment(room, keep);
  while (made.ok() && spares_.size() < keep) made = make_spare(false);  // LS7
  // Only now: whoever hurries may have done so before it came here itself.
  const MutexLock hurry_lock(hurry_mutex_);
  in_a_hurry_ = false;
  return made;
}

// A name that comes back after a power loss is a spare again.
Status LocalLogSink::give_up_reserve() {
  MutexLock lock(room_mutex_);
  if (spares_.empty()) return error_not_found();
  const std::string path = spares_.back();
  spares_.pop_back();
  return fs_->remove(path);
}

void LocalLogSink::hurry() noexcept {
  {
    const MutexLock lock(hurry_mutex_);
    in_a_hurry_ = true;
  }
  hurried_.notify_all();
}

void LocalLogSink::pause_filling() {
  MutexLock lock(hurry_mutex_);
  hurried_.wait_for_us(lock, options_.fill_pause_us,
                       [this]() STRATA_REQUIRES(hurry_mutex_) { return in_a_hurry_; });
}

// LS2, LS3: spare -> header durable -> renamed -> name durable -> usable.
Status LocalLogSink::make_segment(uint64_t start, size_t keep) {
  if (spares_.size() <= keep) STRATA_RETURN_IF_ERROR(make_spare(true));
  const std::string spare = spares_.back();
  auto segment = std::make_shared<Segment>();
  segment->start = start;
  segment->path = segment_path(start);
  {
    STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, open_direct(spare, false));
    STRATA_RETURN_IF_ERROR(write_header(file.get(), start));
    if (fault(FaultPoint::wal_segment_create)) return error_internal("fault wal_segment_create");
    STRATA_RETURN_IF_ERROR(file->sync_data());
  }
  STRATA_RETURN_IF_ERROR(fs_->rename(spare, segment->path));
  spares_.pop_back();
  STRATA_RETURN_IF_ERROR(fs_->sync_directory(options_.directory));
  STRATA_RETURN_IF_ERROR(open_files(segment.get()));
  MutexLock lock(list_mutex_);
  segments_.push_back(std::move(segment));
  return ok_status();
}

Status LocalLogSink::open_files(Segment* segment) {
  STRATA_ASSIGN_OR_RETURN(segment->direct, open_direct(segment->path, false));
  STRATA_ASSIGN_OR_RETURN(segment->buffered, fs_->open(segment->path, {}));
  return ok_status();
}

Status LocalLogSink::write_header(File* file, uint64_t start) {
  const AlignedBytes block(kHeaderBytes);
  SegmentHeader header{};
  header.magic = kSegmentMagic;
  header.format = kSegmentFormat;
  header.database_id = options_.database_id;
  header.start_lsn = start;
  header.bytes = options_.segment_bytes;
  header.node = options_.node.value;
  header.crc32c = header_crc(header);
  std::memset(block.get(), 0, kHeaderBytes);
  std::memcpy(block.get(), &header, sizeof(header));
  return file->write_at(0, block.get(), kHeaderBytes);
}

Status LocalLogSink::make_spare(bool fill) {
  const std::string path = next_spare_path();
  const Status filled = fill_spare(path, fill);
  if (!filled.ok()) {
    fs_->remove(path).IgnoreError();  // a full disk should get its bytes back
    return filled;
  }
  spares_.push_back(path);
  return ok_status();
}

// Zeroes are written, not only allocated: appends then change no metadata (see the README's
// figures).
Status LocalLogSink::fill_spare(const std::string& path, bool fill) {
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, open_direct(path, true));
  STRATA_RETURN_IF_ERROR(file->allocate(options_.segment_bytes));
  if (!fill) return file->sync_data();
  const uint64_t chunk = std::min(kFillChunkBytes, options_.segment_bytes);
  const AlignedBytes zeroes(chunk, BlockWriter::kBlock);
  std::memset(zeroes.get(), 0, chunk);
  for (uint64_t at = 0; at < options_.segment_bytes; at += chunk) {
    if (at != 0) pause_filling();
    const size_t bytes = std::min(chunk, options_.segment_bytes - at);
    STRATA_RETURN_IF_ERROR(file->write_at(at, zeroes.get(), bytes));
  }
  return file->sync_data();
}

// --- opening ---

// A killed process may have left data, or names, in the page cache only: the directory is synced
// here, the segments at the first sync() (LS4).
Status LocalLogSink::open() {
  const MutexLock room_lock(room_mutex_);
  {
    const MutexLock hurry_lock(hurry_mutex_);
    in_a_hurry_ = false;
  }
  STRATA_RETURN_IF_ERROR(fs_->sync_directory(options_.directory));
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->list(options_.directory));
  std::vector<uint64_t> starts;
  for (const std::string& name : names) {
    uint64_t start = 0;
    if (parse_segment_name(name, options_.node, &start)) starts.push_back(start);
  }
  if (starts.empty())
    return error_corruption("no log segment (" + log_prefix(options_.node) + "*.seg) in " +
                            options_.directory + "; restore the log directory");
  std::sort(starts.begin(), starts.end());
  std::vector<SegmentPtr> found;
  for (uint64_t start : starts) {
    if (!found.empty() && start != found.back()->start + data_bytes()) forget_before_hole(&found);
    SegmentPtr segment;
    STRATA_RETURN_IF_ERROR(load_segment(segment_path(start), start, &segment));
    found.push_back(std::move(segment));
  }
  unsynced_ = found;
  {
    const MutexLock lock(list_mutex_);
    segments_ = std::move(found);
  }
  return adopt_spares(names);
}

// Segments are made one after the other, each durable before the next, and removed oldest first;
// but a power loss may take the removals in any order. So what lies before a hole is either such a
// rest, or the missing segment was needed and read() says so.
void LocalLogSink::forget_before_hole(std::vector<SegmentPtr>* segments) {
  missing_ = segment_path(segments->back()->start + data_bytes());
  for (const SegmentPtr& segment : *segments) before_hole_.push_back(segment->path);
  segments->clear();
}

Status LocalLogSink::load_segment(const std::string& path, uint64_t start, SegmentPtr* out) {
  auto segment = std::make_shared<Segment>();
  segment->path = path;
  segment->start = start;
  STRATA_RETURN_IF_ERROR(open_files(segment.get()));
  SegmentHeader h{};
  size_t got = 0;
  STRATA_RETURN_IF_ERROR(segment->buffered->read_at(0, &h, sizeof(h), &got));
  if (got != sizeof(h) || h.magic != kSegmentMagic)
    return error_corruption("log segment " + path + " is not a Strata log segment");
  if (h.format > kSegmentFormat)
    return error_unsupported("log segment " + path + " was written by a newer version");
  if (h.crc32c != header_crc(h))
    return error_corruption("log segment " + path + ": the header is damaged");
  if (h.database_id != options_.database_id || h.node != options_.node.value)
    return error_wrong_database("log segment " + path + " belongs to another database or node");
  if (h.start_lsn != start)
    return error_corruption("log segment " + path + " was renamed: it starts at lsn " +
                            std::to_string(h.start_lsn));
  if (h.bytes != options_.segment_bytes)
    return error_corruption("log segment " + path + " has " + std::to_string(h.bytes) +
                            " bytes, the setting is " + std::to_string(options_.segment_bytes) +
                            "; start once with the old setting");
  STRATA_ASSIGN_OR_RETURN(const uint64_t size, segment->buffered->size());
  if (size < h.bytes)
    return error_corruption("log segment " + path + " is cut off: " + std::to_string(size) +
                            " of " + std::to_string(h.bytes) + " bytes");
  *out = std::move(segment);
  return ok_status();
}

Status LocalLogSink::adopt_spares(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string prefix = spare_prefix(options_.node);
    if (!has_form(name, prefix)) continue;
    const std::string path = path_of(name);
    spare_sequence_ = std::max<uint64_t>(spare_sequence_,
                                         std::strtoull(name.c_str() + prefix.size(), nullptr, 10));
    uint64_t size = 0;
    {
      STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs_->open(path, {}));
      STRATA_ASSIGN_OR_RETURN(size, file->size());
    }
    if (size == options_.segment_bytes && spares_.size() < options_.spare_segments_max) {
      spares_.push_back(path);
    } else {
      STRATA_RETURN_IF_ERROR(fs_->remove(path));
    }
  }
  return ok_status();
}

// --- data ---

Status LocalLogSink::append(Lsn at, Bytes bytes) {
  uint64_t lsn = at.value;
  while (!bytes.empty()) {
    if (appending_ == nullptr || lsn < appending_->start ||
        lsn >= appending_->start + data_bytes()) {
      appending_ = find(lsn);
      writer_.forget();
      STRATA_ASSERT(appending_ != nullptr);  // W7: room was prepared
    }
    const uint64_t offset = lsn - appending_->start;
    const size_t piece = std::min<uint64_t>(bytes.size(), data_bytes() - offset);
    STRATA_RETURN_IF_ERROR(writer_.write(appending_->direct.get(), appending_->buffered.get(),
                                         kHeaderBytes + offset, bytes.substr(0, piece)));
    if (unsynced_.empty() || unsynced_.back() != appending_) unsynced_.push_back(appending_);
    bytes.remove_prefix(piece);
    lsn += piece;
  }
  return ok_status();
}

Status LocalLogSink::sync() {
  for (const SegmentPtr& segment : unsynced_) STRATA_RETURN_IF_ERROR(segment->direct->sync_data());
  unsynced_.clear();
  return ok_status();
}

StatusOr<size_t> LocalLogSink::read(Lsn at, char* out, size_t bytes) {
  if (at < begin_lsn())
    return error_corruption("log offset " + std::to_string(at.value) + " lies before log segment " +
                            segment_path(begin_lsn().value) + ", " +
                            (missing_.empty() ? "the first one: a segment" : missing_) +
                            " is missing; restore it");
  size_t done = 0;
  while (done < bytes) {
    const SegmentPtr segment = find(at.value + done);
    if (segment == nullptr) break;
    const uint64_t offset = at.value + done - segment->start;
    const size_t piece = std::min<uint64_t>(bytes - done, data_bytes() - offset);
    size_t got = 0;
    STRATA_RETURN_IF_ERROR(
        segment->buffered->read_at(kHeaderBytes + offset, out + done, piece, &got));
    done += got;
    if (got < piece) break;
  }
  return done;
}

// Recycled names are durable before a spare's header changes (LS3): otherwise a power loss could
// bring the old name back over a new header.
Status LocalLogSink::truncate_below(Lsn lsn) {
  MutexLock lock(room_mutex_);
  for (const std::string& path : before_hole_) STRATA_RETURN_IF_ERROR(fs_->remove(path));
  before_hole_.clear();
  bool renamed = false;
  std::vector<std::string> recycled;
  for (;;) {
    SegmentPtr first;
    {
      MutexLock list_lock(list_mutex_);
      if (segments_.size() < 2 || segments_[1]->start > lsn.value) break;
      first = segments_.front();
    }
    if (spares_.size() + recycled.size() < options_.spare_segments_max) {
      const std::string spare = next_spare_path();
      STRATA_RETURN_IF_ERROR(fs_->rename(first->path, spare));
      recycled.push_back(spare);
    } else {
      STRATA_RETURN_IF_ERROR(fs_->remove(first->path));
    }
    renamed = true;
    MutexLock list_lock(list_mutex_);
    segments_.erase(segments_.begin());
  }
  if (!renamed) return ok_status();
  STRATA_RETURN_IF_ERROR(fs_->sync_directory(options_.directory));
  spares_.insert(spares_.end(), recycled.begin(), recycled.end());
  return ok_status();
}

}  // namespace

Status DurableLogReader::open_segment_of(Lsn at) {
  const uint64_t data_bytes = options_.segment_bytes - kHeaderBytes;
  if (file_ != nullptr && at.value >= start_ && at.value - start_ < data_bytes) return ok_status();
  file_ = nullptr;
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->list(options_.directory));
  for (const std::string& name : names) {
    uint64_t start = 0;
    if (!parse_segment_name(name, options_.node, &start)) continue;
    if (at.value < start || at.value - start >= data_bytes) continue;
    STRATA_ASSIGN_OR_RETURN(file_, fs_->open(options_.directory + "/" + name,
                                             {.read_only = true, .direct = options_.direct_io}));
    start_ = start;
    return ok_status();
  }
  return error_corruption("no log segment in " + options_.directory + " has log offset " +
                          std::to_string(at.value));
}

StatusOr<Bytes> DurableLogReader::read(Lsn at, Lsn end) {
  STRATA_ASSERT(at < end);
  STRATA_RETURN_IF_ERROR(open_segment_of(at));
  const uint64_t segment_end = start_ + options_.segment_bytes - kHeaderBytes;
  const uint64_t offset = kHeaderBytes + at.value - start_;
  const size_t before = offset % BlockWriter::kBlock;
  const size_t wanted =
      std::min<uint64_t>(std::min(end.value, segment_end) - at.value, kChunk - before);
  const size_t blocks =
      (before + wanted + BlockWriter::kBlock - 1) / BlockWriter::kBlock * BlockWriter::kBlock;
  size_t got = 0;
  STRATA_RETURN_IF_ERROR(file_->read_at(offset - before, buffer_.get(), blocks, &got));
  if (got < before + wanted)
    return error_corruption("log segment " + file_->path() + " is cut off at byte " +
                            std::to_string(offset - before + got));
  return Bytes(buffer_.get() + before, wanted);
}

StatusOr<std::unique_ptr<LogSink>> create_local_log(FileSystem* fs, const LocalLogOptions& options,
                                                    Lsn start) {
  auto sink = std::make_unique<LocalLogSink>(fs, options);
  STRATA_RETURN_IF_ERROR(sink->create(start));
  return std::unique_ptr<LogSink>(std::move(sink));
}

StatusOr<std::unique_ptr<LogSink>> open_local_log(FileSystem* fs, const LocalLogOptions& options) {
  auto sink = std::make_unique<LocalLogSink>(fs, options);
  STRATA_RETURN_IF_ERROR(sink->open());
  return std::unique_ptr<LogSink>(std::move(sink));
}

}  // namespace strata
