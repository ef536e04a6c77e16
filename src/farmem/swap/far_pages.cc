#include "farmem/swap/far_pages.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace strata::farmem {
namespace {

Status beyond() { return error_out_of_range("a page behind the last one"); }

}  // namespace

Status FarPages::read(uint64_t first, uint64_t count, char* to) {
  if (first > pages() || count > pages() - first) return beyond();
  for (uint64_t done = 0; done < count;) {
    const uint64_t page = first + done;
    const bool far = client_->is_far(page);
    uint64_t run = 1;
    while (run < kBatchPagesMax && done + run < count && client_->is_far(page + run) == far) run++;
    char* const at = to + done * kPageBytes;
    if (far) {
      STRATA_RETURN_IF_ERROR(client_->fetch(page, static_cast<uint32_t>(run), at));
    } else {
      std::memset(at, 0, run * kPageBytes);
    }
    done += run;
  }
  return ok_status();
}

Status FarPages::write(uint64_t first, uint64_t count, const char* from) {
  if (first > pages() || count > pages() - first) return beyond();
  std::array<PageOut, kBatchPagesMax> out;
  std::array<Stored, kBatchPagesMax> outcome;
  for (uint64_t done = 0; done < count;) {
    const size_t run = std::min<uint64_t>(kBatchPagesMax, count - done);
    for (size_t i = 0; i < run; i++) out[i] = {first + done + i, from + (done + i) * kPageBytes};
    STRATA_RETURN_IF_ERROR(client_->store({out.data(), run}, absl::MakeSpan(outcome.data(), run)));
    done += run;
  }
  return ok_status();
}

}  // namespace strata::farmem
