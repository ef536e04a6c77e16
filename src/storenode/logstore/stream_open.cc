// What an earlier life left of a stream: which segments count, whether any is missing, where the
// log ends.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/diag.h"
#include "storenode/logstore/internal/stream.h"

namespace strata::logstore {
namespace {

constexpr const char* kHex = "0123456789abcdef";

std::string hex(uint64_t value, size_t digits) {
  std::string out(digits, '0');
  for (size_t i = digits; i-- > 0; value >>= 4) out[i] = kHex[value & 15];
  return out;
}

// Reads exactly `digits` lower-case hex digits at `at`.
std::optional<uint64_t> parse_hex(const std::string& name, size_t at, size_t digits) {
  uint64_t value = 0;
  for (size_t i = at; i < at + digits; ++i) {
    const size_t digit = std::string(kHex).find(name[i]);
    if (digit == std::string::npos) return std::nullopt;
    value = value << 4 | digit;
  }
  return value;
}

}  // namespace

std::string segment_name(const SegmentName& name) {
  return "log-" + hex(name.stream.value, 8) + "-" + hex(name.sequence, 16) + "-" +
         hex(name.start.value, 16) + ".seg";
}

std::optional<SegmentName> parse_segment_name(const std::string& name) {
  if (name.size() != segment_name({}).size() || name.rfind("log-", 0) != 0) return std::nullopt;
  const auto stream = parse_hex(name, 4, 8);
  const auto sequence = parse_hex(name, 13, 16);
  const auto start = parse_hex(name, 30, 16);
  if (!stream || !sequence || !start) return std::nullopt;
  const SegmentName parsed{StreamId{static_cast<uint32_t>(*stream)}, *sequence, Lsn{*start}};
  if (segment_name(parsed) != name || parsed.sequence == 0) return std::nullopt;
  return parsed;
}

std::string control_name(StreamId stream) { return "stream-" + hex(stream.value, 8) + ".ctl"; }

std::optional<StreamId> parse_control_name(const std::string& name) {
  if (name.size() != control_name({}).size() || name.rfind("stream-", 0) != 0) return std::nullopt;
  const auto stream = parse_hex(name, 7, 8);
  if (!stream) return std::nullopt;
  const StreamId parsed{static_cast<uint32_t>(*stream)};
  if (control_name(parsed) != name) return std::nullopt;
  return parsed;
}

Status Stream::open(std::vector<SegmentName> names) {
  const Status opened = control_file_.open(&control_);
  if (is_not_found(opened))
    return error_corruption("stream " + std::to_string(id_.value) +
                            " has segments but no control file " + context_->options.directory +
                            "/" + control_name(id_) +
                            ": its promises are lost; remove the stream's files from this node and "
                            "let it join anew");
  STRATA_RETURN_IF_ERROR(opened);
  quorum_durable_ = std::max(control_.quorum_durable, control_.start);
  std::sort(names.begin(), names.end(),
            [](const SegmentName& a, const SegmentName& b) { return a.sequence < b.sequence; });
  next_sequence_ = std::max({uint64_t{1}, control_.cut_sequence, control_.last_sequence + 1});
  if (!names.empty()) next_sequence_ = std::max(next_sequence_, names.back().sequence + 1);
  drop_void(&names);
  for (const SegmentName& name : names) STRATA_RETURN_IF_ERROR(load_segment(name));
  check_chain();
  return find_end();
}

// Leaves the segments that count, in order of their starts: not those cut off, hidden behind a
// newer one that starts before them, or wholly below the log's start.
void Stream::drop_void(std::vector<SegmentName>* names) {
  std::vector<SegmentName> kept;
  const auto drop = [this](const SegmentName& name) {
    garbage_.push_back(context_->options.directory + "/" + segment_name(name));
  };
  for (const SegmentName& name : *names) {
    while (!kept.empty() && kept.back().start >= name.start) {
      drop(kept.back());
      kept.pop_back();
    }
    const bool is_cut = name.sequence < control_.cut_sequence && name.start >= control_.cut_lsn;
    if (is_cut) {
      drop(name);
    } else {
      kept.push_back(name);
    }
  }
  while (kept.size() > 1 && kept[1].start <= control_.start) {
    drop(kept.front());
    kept.erase(kept.begin());
  }
  *names = std::move(kept);
  remove_garbage();
}

Status Stream::load_segment(const SegmentName& name) {
  const std::string path = context_->options.directory + "/" + segment_name(name);
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, context_->fs->open(path, {}));
  std::string header(sizeof(SegmentHeader), '\0');
  size_t got = 0;
  STRATA_RETURN_IF_ERROR(file->read_at(0, header.data(), header.size(), &got));
  uint32_t salt = 0;
  StatusOr<SegmentInfo> info = decode_segment_header(Bytes(header).substr(0, got), path, &salt);
  if (info.ok() && (info->cluster_id != context_->options.cluster_id || info->stream != id_ ||
                    info->sequence != name.sequence || info->start != name.start))
    info = error_corruption("log segment " + path +
                            " belongs to another cluster or stream, or was renamed");
  // LG13: the epoch may have been forgotten, here since or where the bytes came from.
  const Epoch expected = quorum::epoch_at(control_.history, name.start);
  if (info.ok() && info->epoch != expected && !info->epoch.is_zero() && !expected.is_zero() &&
      info->start >= control_.start)
    info = error_corruption("log segment " + path + " is of epoch " +
                            std::to_string(info->epoch.value) + ", the stream's history says " +
                            quorum::describe(control_.history));
  if (!info.ok() && !is_corruption(info.status())) return info.status();
  SegmentInfo known;
  known.cluster_id = context_->options.cluster_id;
  known.stream = id_;
  known.sequence = name.sequence;
  known.start = name.start;
  auto segment = std::make_shared<Segment>(context_->fs, path, info.ok() ? *info : known, salt);
  if (!info.ok()) {
    segment->header_failure = info.status();
    diag(Severity::kError, "stream %u: %s", id_.value,
         std::string(info.status().message()).c_str());
  }
  segments_.push_back(std::move(segment));
  return ok_status();
}

// Each segment names the one before it, so that a missing file is known by its number.
void Stream::check_chain() {
  for (size_t i = 0; i < segments_.size(); ++i) {
    Segment& segment = *segments_[i];
    const uint64_t before = i == 0 ? 0 : segments_[i - 1]->info.sequence;
    if (!segment.header_failure.ok() || segment.info.previous == before) continue;
    const std::string what = "log segment number " + hex(segment.info.previous, 16) +
                             " of stream " + std::to_string(id_.value) + " is missing in " +
                             context_->options.directory;
    if (i > 0) {
      segments_[i - 1]->missing_behind = " (" + what + ")";
    } else if (segment.info.start > control_.start) {
      holes_.push_back({control_.start, segment.info.start, segment.path, 0,
                        what + "; copy the range from a peer (repair)"});
    } else {
      continue;  // it was truncated
    }
    diag(Severity::kError, "%s", what.c_str());
  }
}

// What the newest segment holds was perhaps never synced: a killed process leaves it in the page
// cache. It is made durable before anything is built on it. Older ones were synced before the next
// one was made.
Status Stream::find_end() {
  durable_end_ = control_.start;
  if (segments_.empty() || segments_.back()->info.sequence < control_.last_sequence) {
    if (!segments_.empty()) {
      Segment& last = *segments_.back();
      const Status scanned = find_end_of(&last);
      if (!scanned.ok() && !is_corruption(scanned)) return scanned;
    }
    if (control_.last_sequence == 0) return ok_status();
    return lose_tail("log segment number " + hex(control_.last_sequence, 16) + " is missing");
  }
  Segment& last = *segments_.back();
  const Status scanned = find_end_of(&last);
  if (is_corruption(scanned)) return lose_tail(std::string(scanned.message()));
  return scanned;
}

Status Stream::find_end_of(Segment* last) {
  if (last->info.sequence < control_.cut_sequence) {
    durable_end_ = std::max(control_.start, control_.cut_lsn);
    return ok_status();
  }
  durable_end_ = std::max(control_.start, last->info.start);
  STRATA_RETURN_IF_ERROR(last->header_failure);
  STRATA_RETURN_IF_ERROR(last->sync());
  STRATA_ASSIGN_OR_RETURN(File* const file, last->file());
  STRATA_ASSIGN_OR_RETURN(SegmentIndex index, scan_segment(file, last->path, last->salt,
                                                           last->info.start, std::nullopt));
  for (const LogDamage& damage : index.damages)
    diag(Severity::kError, "stream %u: %s", id_.value, damage.what.c_str());
  context_->counters.damages += index.damages.size();
  durable_end_ = std::max(control_.start, index.end);
  quorum_durable_ = std::max(quorum_durable_, index.quorum_durable);
  last->adopt(std::move(index));
  return ok_status();
}

// Something this replica had acknowledged is gone, and nobody knows how much: it must not say any
// more where the log ends. It votes again when it has joined anew.
Status Stream::lose_tail(const std::string& what) {
  diag(Severity::kError,
       "stream %u in %s has lost its tail: %s. It goes on without a vote until it has caught up",
       id_.value, context_->options.directory.c_str(), what.c_str());
  ++context_->counters.damages;
  ControlState next = control_;
  next.voter_end = kNeverVotes;
  next.last_sequence = segments_.empty() ? 0 : segments_.back()->info.sequence;
  return publish(std::move(next));
}

}  // namespace strata::logstore
