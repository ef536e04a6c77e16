#include "transport/regions/region_memory.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

namespace strata::transport {
namespace {

using Kind = RegionOperation::Kind;

constexpr size_t kOperationsMax = 4096;  // of a batch that travels

std::atomic_ref<uint64_t> word_at(char* memory, uint64_t offset) noexcept {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memory + offset));
}

uint64_t length_of(const RegionOperation& operation) noexcept {
  if (operation.kind == Kind::kPut) return operation.source.size();
  return operation.kind == Kind::kGet ? operation.target.size() : 8;
}

// Calls with each piece of [offset, offset + bytes) in turn: whole aligned words, and single bytes
// before and after them.
template <class OnWord, class OnByte>
void for_pieces(uint64_t offset, size_t bytes, OnWord on_word, OnByte on_byte) noexcept {
  size_t done = 0;
  while (done < bytes && (offset + done) % 8 != 0) on_byte(done++);
  for (; bytes - done >= 8; done += 8) on_word(done);
  while (done < bytes) on_byte(done++);
}

// RR2, RR3: each word is stored with release and loaded with acquire, so that what was put before
// is visible before it. On x86-64 these are plain moves. A fence around memcpy would do, but
// others read and write the same memory meanwhile, which memcpy is not defined for.
void put(char* memory, uint64_t offset, Bytes source) noexcept {
  char* target = memory + offset;
  for_pieces(
      offset, source.size(),
      [&](size_t at) {
        word_at(target, at).store(load_u64(source.data() + at), std::memory_order_release);
      },
      [&](size_t at) {
        std::atomic_ref<char>(target[at]).store(source[at], std::memory_order_release);
      });
}

void get(char* memory, uint64_t offset, absl::Span<char> target) noexcept {
  char* source = memory + offset;
  for_pieces(
      offset, target.size(),
      [&](size_t at) {
        store_u64(target.data() + at, word_at(source, at).load(std::memory_order_acquire));
      },
      [&](size_t at) {
        target[at] = std::atomic_ref<char>(source[at]).load(std::memory_order_acquire);
      });
}

}  // namespace

Status check_operation(const RegionOperation& operation, uint64_t region_bytes) {
  const uint64_t length = length_of(operation);
  if (operation.offset > region_bytes || length > region_bytes - operation.offset)
    return error_out_of_range("an operation outside the region");
  const bool atomic = operation.kind == Kind::kFetchAdd || operation.kind == Kind::kCompareSwap;
  if (atomic && operation.offset % 8 != 0) return error_invalid_argument("an atomic not aligned");
  return ok_status();
}

Status check_batch(absl::Span<const RegionOperation> batch, uint64_t region_bytes,
                   RegionAccess access) {
  for (const RegionOperation& operation : batch) {
    STRATA_RETURN_IF_ERROR(check_operation(operation, region_bytes));
    if (access == RegionAccess::kReadOnly && operation.kind != Kind::kGet)
      return error_invalid_argument("the region is for reading only");
  }
  return ok_status();
}

void apply_operation(RegionOperation* operation, char* memory) noexcept {
  switch (operation->kind) {
    case Kind::kPut:
      return put(memory, operation->offset, operation->source);
    case Kind::kGet:
      return get(memory, operation->offset, operation->target);
    case Kind::kFetchAdd:
      operation->before = word_at(memory, operation->offset).fetch_add(operation->operand);
      return;
    case Kind::kCompareSwap:
      operation->before = operation->expected;
      // On failure the first argument becomes what is there.
      word_at(memory, operation->offset)
          .compare_exchange_strong(operation->before, operation->operand);
      return;
  }
}

std::string encode_operations(uint64_t incarnation, absl::Span<const RegionOperation> batch) {
  std::string out;
  append_u64(&out, incarnation);
  for (const RegionOperation& operation : batch) {
    append_u8(&out, static_cast<uint8_t>(operation.kind));
    append_u64(&out, operation.offset);
    if (operation.kind == Kind::kPut) append_bytes32(&out, operation.source);
    if (operation.kind == Kind::kGet)
      append_u32(&out, static_cast<uint32_t>(operation.target.size()));
    if (operation.kind == Kind::kFetchAdd) append_u64(&out, operation.operand);
    if (operation.kind == Kind::kCompareSwap) {
      append_u64(&out, operation.expected);
      append_u64(&out, operation.operand);
    }
  }
  return out;
}

Status decode_results(Bytes reply, absl::Span<RegionOperation> batch) {
  ByteReader reader(reply);
  for (RegionOperation& operation : batch) {
    if (operation.kind == Kind::kPut) continue;
    if (operation.kind == Kind::kGet) {
      const Bytes bytes = reader.bytes(operation.target.size());
      if (reader.ok()) std::memcpy(operation.target.data(), bytes.data(), bytes.size());
    } else {
      operation.before = reader.u64();
    }
  }
  if (!reader.ok() || reader.remaining() != 0)
    return error_corruption("results that do not fit the operations");
  return ok_status();
}

StatusOr<std::string> run_encoded(Bytes operations, const Region& region, uint64_t reply_bytes_max,
                                  RegionAccess access, uint64_t* refused) {
  // Targets of gets are places in the reply, which must not move: sizes first.
  std::vector<RegionOperation> batch;
  std::vector<uint64_t> get_bytes;
  uint64_t reply_bytes = 0;
  ByteReader reader(operations);
  while (reader.remaining() > 0) {
    RegionOperation operation;
    operation.kind = static_cast<Kind>(reader.u8());
    operation.offset = reader.u64();
    uint64_t bytes = 8;
    switch (operation.kind) {
      case Kind::kPut:
        operation.source = reader.bytes32();
        bytes = 0;
        break;
      case Kind::kGet:
        bytes = reader.u32();
        if (!region.holds(operation.offset, bytes))
          return error_out_of_range("an operation outside the region");
        break;
      case Kind::kFetchAdd:
        operation.operand = reader.u64();
        break;
      case Kind::kCompareSwap:
        operation.expected = reader.u64();
        operation.operand = reader.u64();
        break;
      default:
        return error_corruption("no such operation");
    }
    if (!reader.ok()) return error_corruption("operations cut short");
    STRATA_RETURN_IF_ERROR(check_operation(operation, region.bytes()));
    reply_bytes += bytes;
    if (reply_bytes > reply_bytes_max || batch.size() == kOperationsMax)
      return error_invalid_argument("a batch too long");
    batch.push_back(operation);
    get_bytes.push_back(bytes);
  }
  if (!reader.ok()) return error_corruption("operations cut short");
  if (access == RegionAccess::kReadOnly) {  // RX3
    const auto changes = static_cast<uint64_t>(std::count_if(
        batch.begin(), batch.end(),
        [](const RegionOperation& operation) { return operation.kind != Kind::kGet; }));
    if (refused != nullptr) *refused = changes;
    if (changes > 0) return error_invalid_argument("the region is for reading only");
  }
  std::string reply(reply_bytes, '\0');
  char* next = reply.data();
  for (size_t i = 0; i < batch.size(); i++) {
    if (batch[i].kind == Kind::kGet) batch[i].target = {next, get_bytes[i]};
    apply_operation(&batch[i], region.data());
    const bool atomic = batch[i].kind == Kind::kFetchAdd || batch[i].kind == Kind::kCompareSwap;
    if (atomic) store_u64(next, batch[i].before);
    next += get_bytes[i];
  }
  return reply;
}

}  // namespace strata::transport
