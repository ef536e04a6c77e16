// Which version a page had when it was given up: what its next reader must not be older than (S3).
// Thread-safe.
//   GU1  find() of a page noted is the newest llsn noted for it, as long as it is among the pages
//        noted lately; else the newest llsn of all that were forgotten, which says what it may be,
//        not what it is.
#pragma once

#include <cstddef>
#include <memory>

#include "base/ids.h"

namespace strata::clients {

class GivenUpPages {
 public:
  explicit GivenUpPages(size_t pages_max);
  ~GivenUpPages();
  GivenUpPages(const GivenUpPages&) = delete;
  GivenUpPages& operator=(const GivenUpPages&) = delete;

  void note(PageId id, Llsn llsn);
  struct Found {
    bool exact = false;
    Llsn llsn;
  };
  [[nodiscard]] Found find(PageId id) const;

 private:
  struct Shard;
  Shard& shard_of(PageId id) const;
  const size_t pages_max_;
  const std::unique_ptr<Shard[]> shards_;
};

}  // namespace strata::clients
