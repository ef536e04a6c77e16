// The entries of one row in the table's indexes, made one after the other into one buffer and then
// given to the kernel as a list.
//
//   EL1  The buffer may move while entries are added to it: what points into it (key(), covering(),
//        images()) is good once all are there, until the next clear().
#pragma once

#include <vector>

#include "engine/kernel.h"
#include "mariadb/buffer.h"

namespace strata::glue {

class EntryList {
 public:
  void open(size_t indexes) { entries_.resize(indexes); }
  void clear() noexcept {
    bytes_.clear();
    images_.clear();
  }

  // --- filling: add_key() follows the key that was appended to bytes(), add_covering() what came
  // behind it ---
  [[nodiscard]] Buffer* bytes() noexcept { return &bytes_; }
  void begin(size_t index) noexcept { entries_[index].key = bytes_.size(); }
  void end_key(size_t index, bool has_null) noexcept {
    Entry& entry = entries_[index];
    entry.covering = bytes_.size();
    entry.has_null = has_null;
  }
  // `beside`: so many bytes the kernel adds to the entry. Covering bytes that would make it too
  // large go, all of them (TL4).
  void end_covering(size_t index, size_t beside) noexcept {
    Entry& entry = entries_[index];
    if (bytes_.size() - entry.key + beside > engine::kMaxEntryBytes) bytes_.shrink(entry.covering);
    entry.end = bytes_.size();
  }

  // --- reading (EL1) ---
  [[nodiscard]] Bytes key(size_t index) const noexcept {
    const Entry& entry = entries_[index];
    return bytes_.bytes().substr(entry.key, entry.covering - entry.key);
  }
  [[nodiscard]] Bytes covering(size_t index) const noexcept {
    const Entry& entry = entries_[index];
    return bytes_.bytes().substr(entry.covering, entry.end - entry.covering);
  }
  [[nodiscard]] bool has_null(size_t index) const noexcept { return entries_[index].has_null; }

  // The entry as the kernel adds it, or finds it to remove it.
  void add(size_t index, bool unique) {
    images_.push_back(
        {static_cast<uint32_t>(index), key(index), unique && !has_null(index), covering(index)});
  }
  void remove(size_t index) {
    images_.push_back({static_cast<uint32_t>(index), key(index), false, Bytes()});
  }
  [[nodiscard]] const engine::EntryImage* images() const noexcept { return images_.data(); }
  [[nodiscard]] uint32_t size() const noexcept { return static_cast<uint32_t>(images_.size()); }
  [[nodiscard]] bool empty() const noexcept { return images_.empty(); }

 private:
  struct Entry {  // where it lies in bytes_
    size_t key = 0, covering = 0, end = 0;
    bool has_null = false;
  };
  Buffer bytes_;
  std::vector<Entry> entries_;  // by index
  std::vector<engine::EntryImage> images_;
};

}  // namespace strata::glue
