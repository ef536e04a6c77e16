#include "memnode/host/stored_pages.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/assert.h"
#include "page/page.h"

namespace strata::memnode {

StoredPages::StoredPages(PageSource* storage, size_t known_max)
    : storage_(storage), known_max_(known_max), batch_(kWriteBatchPages * size_t{kPageBytes}) {}

bool StoredPages::is_older(const Image& image) const {
  const auto found = written_.find(image.page.packed());
  return found != written_.end() && found->second > image.llsn.value;
}

void StoredPages::note(const Image& image) {
  // Any that is forgotten will do: this is a second lock on the door, versions only grow (FP1).
  if (written_.size() >= known_max_ && !written_.contains(image.page.packed()))
    written_.erase(written_.begin());
  uint64_t& llsn = written_[image.page.packed()];
  llsn = std::max(llsn, image.llsn.value);
}

void StoredPages::write(absl::Span<const Image> images, absl::Span<Status> results) {
  STRATA_ASSERT(images.size() == results.size());
  std::vector<size_t> order;
  for (size_t i = 0; i < images.size(); ++i) {
    results[i] = ok_status();
    if (!is_older(images[i])) order.push_back(i);  // SPG3
  }
  // SPG2. Of the same page the newest one comes first, and stays.
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return images[a].page != images[b].page ? images[a].page < images[b].page
                                            : images[a].llsn > images[b].llsn;
  });
  std::vector<size_t> once;
  for (const size_t i : order)
    if (once.empty() || images[once.back()].page != images[i].page) once.push_back(i);
  for (size_t at = 0; at < once.size(); at += kWriteBatchPages)
    write_batch(images, absl::MakeConstSpan(once).subspan(at, kWriteBatchPages), results);
  // SPG1
  const Status synced = once.empty() ? ok_status() : storage_->sync();
  size_t writer = 0;  // of once: the one that stands for order[i]
  for (const size_t i : order) {
    while (images[once[writer]].page != images[i].page) ++writer;
    if (!synced.ok() && results[once[writer]].ok()) results[once[writer]] = synced;
    results[i] = results[once[writer]];
  }
  for (const size_t i : once)
    if (results[i].ok()) note(images[i]);
}

void StoredPages::write_batch(absl::Span<const Image> images, absl::Span<const size_t> which,
                              absl::Span<Status> results) {
  std::array<PageId, kWriteBatchPages> ids;
  std::array<bool, kWriteBatchPages> ok{};
  for (size_t i = 0; i < which.size(); ++i) {
    ids[i] = images[which[i]].page;
    std::memcpy(batch_.get() + i * size_t{kPageBytes}, images[which[i]].bytes, kPageBytes);
  }
  const Status written = storage_->write_batch(ids.data(), static_cast<uint32_t>(which.size()),
                                               batch_.get(), ok.data());
  for (size_t i = 0; i < which.size(); ++i) {
    if (ok[i]) continue;
    results[which[i]] = written.ok() ? error_peer_down("the page was not written") : written;
  }
}

}  // namespace strata::memnode
