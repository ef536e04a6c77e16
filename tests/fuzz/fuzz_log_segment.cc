// A stream of a log store: segments of any bytes among whole chunks, any header, any control file,
// checksums made right on request. What opens is consistent, reads give bytes or a named error, and
// what is appended afterwards survives.
#include "base/crc32c.h"
#include "base/diag.h"
#include "fuzz.h"
#include "storenode/logstore/internal/segment_format.h"
#include "storenode/logstore/log_store.h"

namespace strata::fuzz {
namespace {

constexpr StreamId kStream{1};
constexpr const char* kControl = "/node/stream-00000001.ctl";
constexpr size_t kSlotBytes = 16384;

LogStoreOptions options() {
  LogStoreOptions o;
  o.directory = "/node";
  o.cluster_id = 42;
  o.segment_bytes = 4096 + 4096;
  o.chunk_bytes_max = 500;
  o.spare_segments_max = 1;
  return o;
}

std::unique_ptr<LogStore> open_store(FileSystem* fs) {
  auto store = LogStore::open(fs, options());
  FUZZ_CHECK(store.ok());
  return std::move(*store);
}

quorum::ChangeReply begin(LogStore* store, const quorum::Tenure& tenure) {
  quorum::ChangeReply out;
  store->make_stream(kStream, {}, [](const auto&) {});
  store->begin_epoch(kStream, {tenure, tenure.start}, [&](const auto& r) { out = r; });
  store->persist_pending();
  return out;
}

quorum::ChangeReply append(LogStore* store, Epoch epoch, Lsn at, const std::string& bytes) {
  quorum::ChangeReply out;
  store->append(kStream, {epoch, at, bytes, at}, [&](const auto& r) { out = r; });
  store->persist_pending();
  return out;
}

void write(FileSystem* fs, const std::string& path, uint64_t at, const std::string& bytes) {
  const auto file = fs->open(path, {.create = true});
  FUZZ_CHECK(file.ok() && (*file)->write_at(at, bytes.data(), bytes.size()).ok());
}

// A stream that has begun epoch 1 at 0.
void make_stream(FileSystem* fs) {
  const auto store = open_store(fs);
  quorum::Tenure tenure;
  tenure.holder = {Epoch{1}, 7};
  FUZZ_CHECK(begin(store.get(), tenure).status.ok());
}

// Chunks that continue each other, as far as the input wants, with any bytes between.
std::string chunks(Input* input, uint32_t salt, Lsn lsn) {
  std::string out;
  while (!input->empty() && out.size() < 4000) {
    const uint8_t mode = input->u8();
    const size_t bytes = 1 + input->u8();
    if ((mode & 1) != 0) {
      out += input->take_some(bytes);
      out.resize((out.size() + 7) / 8 * 8, '\0');
      continue;
    }
    if ((mode & 2) != 0) lsn.value += input->u8();
    const Lsn durable{(mode & 4) != 0 ? lsn.value : lsn.value / 2};
    const size_t from = out.size();
    logstore::encode_chunk(&out, salt, lsn, durable, Lsn{input->u8()}, input->take(bytes));
    if ((mode & 8) != 0) out[from + input->u8() % (out.size() - from)] ^= 0x10;
    lsn.value += bytes;
  }
  return out;
}

void make_segment(FileSystem* fs, Input* input, uint64_t sequence, Lsn start) {
  logstore::SegmentInfo info;
  info.cluster_id = 42;
  info.stream = kStream;
  info.sequence = sequence;
  info.previous = sequence - 1;
  info.epoch = Epoch{1};
  info.start = start;
  uint32_t salt = 0;
  std::string bytes = logstore::encode_segment_header(info, &salt);
  const uint8_t mode = input->u8();
  if ((mode & 1) != 0) {
    const size_t at = input->u8() % 64;
    const std::string patch = input->take(1 + mode % 8);
    bytes.replace(at, patch.size(), patch);
    if ((mode & 2) != 0) {  // a right checksum over it
      const uint32_t seed = crc32c(bytes.data() + 8, 4);
      store_u32(bytes.data() + 12, salt = crc32c(bytes.data() + 16, 48, seed));
    }
  }
  Input part(reinterpret_cast<const uint8_t*>(input->rest().data()),
             std::min<size_t>(input->rest().size(), 600));
  (void)input->take_some(600);
  bytes += chunks(&part, salt, start);
  char name[80];
  std::snprintf(name, sizeof(name), "/node/log-00000001-%016llx-%016llx.seg",
                static_cast<unsigned long long>(sequence),
                static_cast<unsigned long long>(start.value));
  write(fs, name, 0, bytes);
}

void damage_control(FileSystem* fs, Input* input) {
  for (uint64_t slot = 0; slot < 2; ++slot) {
    const uint8_t mode = input->u8();
    const auto file = fs->open(kControl, {});
    std::string bytes(kSlotBytes, '\0');
    size_t got = 0;
    FUZZ_CHECK((*file)->read_at(slot * kSlotBytes, bytes.data(), kSlotBytes, &got).ok());
    const std::string patch = input->take(1 + mode % 32);
    bytes.replace(input->u8(), patch.size(), patch);
    if ((mode & 64) != 0) {
      const uint32_t seed = crc32c(bytes.data() + 8, 4);
      store_u32(bytes.data() + 12, crc32c(bytes.data() + 16, kSlotBytes - 16, seed));
    }
    FUZZ_CHECK((*file)->write_at(slot * kSlotBytes, bytes.data(), kSlotBytes).ok());
  }
}

// Reads what is there; an error says where.
void read_all(LogStore* store, const quorum::ReplicaState& s) {
  uint64_t at = s.start.value;
  for (int steps = 0; at < s.end.value && steps < 200; ++steps) {
    const auto got = store->read(kStream, {Lsn{at}, 700, true, s.promised});
    if (got.status.ok()) {
      FUZZ_CHECK(!got.bytes.empty() && got.bytes.size() <= 700);
      FUZZ_CHECK(at + got.bytes.size() <= s.end.value);
      at += got.bytes.size();
      continue;
    }
    FUZZ_CHECK(is_corruption(got.status) || is_unsupported(got.status));
    at += 1 + (s.end.value - at) / 16;
  }
}

void try_repairs(LogStore* store) {
  const auto status = store->status(kStream);
  for (size_t i = 0; i < status->damages.size() && i < 4; ++i) {
    const LogDamage& d = status->damages[i];
    FUZZ_CHECK(d.from < d.to);
    FUZZ_CHECK(!d.what.empty());
    if (d.to.value - d.from.value > 100'000) continue;
    store->repair(kStream, d.from, std::string(d.to.value - d.from.value, 'r'), [](const auto&) {});
    store->persist_pending();
  }
}

}  // namespace
}  // namespace strata::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;  // NOLINT
  set_diag_sink([](Severity, std::string_view) {});
  fuzz::Input input(data, size);
  const auto fs = make_sim_file_system();
  const uint8_t mode = input.u8();
  fuzz::make_stream(fs.get());
  if ((mode & 1) != 0) fuzz::damage_control(fs.get(), &input);
  const uint64_t segments = 1 + mode / 2 % 3;
  uint64_t start = 0;
  for (uint64_t i = 1; i <= segments; ++i) {
    fuzz::make_segment(fs.get(), &input, i, Lsn{start});
    start += input.u8();
  }
  auto store = fuzz::open_store(fs.get());
  auto status = store->status(fuzz::kStream);
  FUZZ_CHECK(status.ok());
  if (!status->failure.ok()) {
    FUZZ_CHECK(status->failure.message().find("/node") != std::string::npos);
    return 0;
  }
  const quorum::ReplicaState s = status->state;
  FUZZ_CHECK(s.start <= s.quorum_durable && s.quorum_durable <= s.end);
  FUZZ_CHECK(s.last_epoch <= s.promised);
  (void)store->verify(fuzz::kStream);
  fuzz::read_all(store.get(), s);
  fuzz::try_repairs(store.get());
  fuzz::read_all(store.get(), s);
  // The log goes on, and what was acknowledged is there in the next life.
  const std::string more(900, 'm');
  const auto appended = fuzz::append(store.get(), s.last_epoch, s.end, more);
  if (!appended.status.ok()) return 0;
  FUZZ_CHECK(appended.state.end.value == s.end.value + more.size());
  store.reset();
  fs->crash(mode);
  store = fuzz::open_store(fs.get());
  status = store->status(fuzz::kStream);
  FUZZ_CHECK(status.ok() && status->failure.ok());
  FUZZ_CHECK(status->state.end == appended.state.end);
  std::string found;
  while (found.size() < more.size()) {
    const auto got =
        store->read(fuzz::kStream, {Lsn{s.end.value + found.size()}, 1000, true, s.promised});
    FUZZ_CHECK(got.status.ok() && !got.bytes.empty());
    found += got.bytes;
  }
  FUZZ_CHECK(found == more);
  return 0;
}
