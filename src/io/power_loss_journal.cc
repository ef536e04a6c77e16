#include "io/internal/power_loss_journal.h"

#include "base/crc32c.h"
#include "io/file_system.h"

namespace strata::power_loss {
namespace {

constexpr uint32_t kMagic = 0x4c505453;  // "STPL"
constexpr size_t kFrameBytes = 12;

}  // namespace

void append_record(std::string* out, const Record& record) {
  const size_t start = out->size();
  append_u32(out, kMagic);
  append_u64(out, 0);  // length and checksum, below
  append_u8(out, static_cast<uint8_t>(record.kind));
  for (const uint64_t v : {record.seq, record.file, record.a, record.b, record.c, record.d})
    append_u64(out, v);
  append_bytes32(out, record.path);
  append_bytes32(out, record.path2);
  append_bytes32(out, record.data);
  const size_t payload = out->size() - start - kFrameBytes;
  store_u32(out->data() + start + 4, static_cast<uint32_t>(payload));
  store_u32(out->data() + start + 8, crc32c(out->data() + start + kFrameBytes, payload));
}

std::optional<Record> take_record(Bytes* in) {
  ByteReader frame(*in);
  const uint32_t magic = frame.u32();
  const uint32_t bytes = frame.u32();
  const uint32_t checksum = frame.u32();
  const Bytes payload = frame.bytes(bytes);
  if (!frame.ok() || magic != kMagic || crc32c(payload.data(), payload.size()) != checksum)
    return std::nullopt;
  ByteReader fields(payload);
  Record record;
  record.kind = static_cast<RecordKind>(fields.u8());
  for (uint64_t* v : {&record.seq, &record.file, &record.a, &record.b, &record.c, &record.d})
    *v = fields.u64();
  record.path = fields.bytes32();
  record.path2 = fields.bytes32();
  record.data = fields.bytes32();
  if (!fields.ok()) return std::nullopt;
  in->remove_prefix(kFrameBytes + bytes);
  return record;
}

Record change_record(uint64_t seq, uint64_t file, const FileChange& change) {
  return Record{.kind = RecordKind::kChange,
                .seq = seq,
                .file = file,
                .a = change.offset,
                .b = change.bytes,
                .c = change.old_size,
                .d = change.new_size,
                .path = {},
                .path2 = {},
                .data = change.before};
}

FileChange change_of(const Record& record) {
  return FileChange{.offset = record.a,
                    .bytes = record.b,
                    .old_size = record.c,
                    .new_size = record.d,
                    .before = record.data};
}

std::string kept_folder_of(const std::string& journal_path) { return journal_path + ".removed"; }

void empty_kept_folder(const std::string& journal_path) {
  const std::string folder = kept_folder_of(journal_path);
  const std::unique_ptr<FileSystem> disk = make_posix_file_system();
  const auto names = disk->list(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    std::string path = folder;
    path.append("/").append(name);
    disk->remove(path).IgnoreError();
  }
}

}  // namespace strata::power_loss
