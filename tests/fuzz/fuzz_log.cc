// The log: segments with any header and any content; groups among it get a right checksum on
// request, so that the reader goes on behind them.
#include "base/crc32c.h"
#include "fuzz.h"
#include "redo/redo.h"
#include "wal/local_log_sink.h"
#include "wal/log_reader.h"

namespace strata::fuzz {
namespace {

constexpr uint64_t kSegmentBytes = 4096 + 8192;
constexpr uint64_t kStart = 4096;

LocalLogOptions options() {
  LocalLogOptions o;
  o.directory = "/log";
  o.database_id = 42;
  o.segment_bytes = kSegmentBytes;
  return o;
}

// Puts groups of the input's bytes one after the other, as a log would.
std::string make_stream(Input* input) {
  std::string stream;
  while (!input->empty() && stream.size() < 14000) {
    const uint8_t mode = input->u8();
    const size_t bytes = input->u16() % 3000;
    if ((mode & 1) != 0) {
      stream += input->take_some(bytes);
      stream.resize((stream.size() + 7) / 8 * 8, '\0');
      continue;
    }
    redo::GroupHeader header{};
    header.magic = redo::kGroupMagic;
    header.lsn = kStart + stream.size();
    header.durable_delta = (mode & 2) != 0 ? input->u16() : UINT32_MAX;
    header.node = 1;
    header.section_count = static_cast<uint16_t>(mode >> 6);
    std::string group(sizeof header, '\0');
    group += input->take_some(bytes);
    group.resize((group.size() + 7) / 8 * 8, '\0');
    header.length = static_cast<uint32_t>(group.size()) + ((mode & 4) != 0 ? 64 : 0);
    header.llsn = header.lsn + group.size() + (mode >> 3 & 7);
    std::memcpy(group.data(), &header, sizeof header);
    if ((mode & 4) == 0) redo::seal_group(group.data());
    stream += group;
  }
  return stream;
}

void write_stream(FileSystem* fs, const std::string& stream) {
  const auto sink = create_local_log(fs, options(), Lsn{kStart});
  FUZZ_CHECK(sink.ok());
  FUZZ_CHECK((*sink)->prepare_room(Lsn{kStart + stream.size() + 1}).ok());
  FUZZ_CHECK((*sink)->append(Lsn{kStart}, stream).ok());
  FUZZ_CHECK((*sink)->sync().ok());
}

// Overwrites the header of the first segment, perhaps with a right checksum.
void damage_header(FileSystem* fs, Input* input, bool right) {
  const auto file = fs->open("/log/log-01-0000000000001000.seg", {});
  FUZZ_CHECK(file.ok());
  char header[48];
  size_t got = 0;
  FUZZ_CHECK((*file)->read_at(0, header, sizeof header, &got).ok());
  const uint8_t at = input->u8() % sizeof header;
  const std::string bytes = input->take_some(sizeof header - at);
  std::memcpy(header + at, bytes.data(), bytes.size());
  if (right) store_u32(header + 12, crc32c(header + 16, sizeof header - 16));
  FUZZ_CHECK((*file)->write_at(0, header, sizeof header).ok());
}

}  // namespace
}  // namespace strata::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;  // NOLINT
  fuzz::Input input(data, size);
  const auto fs = make_sim_file_system();
  const uint8_t mode = input.u8();
  FUZZ_CHECK(fs->make_directory("/log").ok());
  if ((mode & 3) != 0) {
    fuzz::write_stream(fs.get(), "");
    fuzz::damage_header(fs.get(), &input, (mode & 2) != 0);
  } else {
    fuzz::write_stream(fs.get(), fuzz::make_stream(&input));
  }
  const auto sink = open_local_log(fs.get(), fuzz::options());
  if (!sink.ok()) {
    FUZZ_CHECK(sink.status().message().find("/log") != std::string::npos);
    return 0;
  }
  LogReader reader(sink->get(), Lsn{fuzz::kStart});
  redo::GroupView group;
  uint64_t end = fuzz::kStart;
  for (;;) {
    const auto more = reader.next(&group);
    if (!more.ok()) return 0;
    if (!*more) break;
    FUZZ_CHECK(group.header.lsn == end);
    end += group.header.length;
    (void)redo::for_each_section(group, [](const redo::SectionView&) { return ok_status(); });
  }
  FUZZ_CHECK(reader.end_lsn().value == end);
  FUZZ_CHECK(reader.erase_tail().ok());
  // LR3: nothing behind the end parses any more.
  LogReader again((*sink).get(), Lsn{end}, reader.bias());
  const auto more = again.next(&group);
  FUZZ_CHECK(more.ok() && !*more);
  return 0;
}
