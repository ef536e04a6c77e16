// The pages of storage nodes for a node that only reads (pagefile/page_source.h). Thread-safe.
//   RO1  Nothing is written, remembered as written, made or dropped: whoever tries is told so, and
//        who writes.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "pagefile/page_source.h"

namespace strata::clients {

class ReaderPages final : public PageSource {
 public:
  // `pages` outlives this. `writers`: who may write, for messages; any thread.
  ReaderPages(PageSource* pages, std::function<std::string()> writers)
      : pages_(pages), writers_(std::move(writers)) {}

  Status read(PageId id, Llsn at_least, char* page) override {
    return pages_->read(id, at_least, page);
  }
  Status read_version(PageId id, Llsn at_least, Llsn at_most, char* page) override {
    return pages_->read_version(id, at_least, at_most, page);
  }
  void read_batch(const PageId* ids, uint32_t count, char* pages, Status* results) override {
    pages_->read_batch(ids, count, pages, results);
  }
  void start_read_batch(const PageId* ids, uint32_t count, char* pages, Status* results,
                        ReadBatchDone done) override {
    pages_->start_read_batch(ids, count, pages, results, std::move(done));
  }
  Status write(PageId, const char*) override { return refused("a page"); }
  Status sync() override { return ok_status(); }  // of nothing
  Status create_space(SpaceId) override { return refused("a new space"); }
  Status delete_space(SpaceId) override { return refused("the end of a space"); }
  StatusOr<bool> space_exists(SpaceId space) override { return pages_->space_exists(space); }
  StatusOr<std::vector<SpaceId>> list_spaces() override { return pages_->list_spaces(); }
  Status grow_space(SpaceId, uint32_t) override { return refused("a larger space"); }
  StatusOr<uint32_t> space_pages(SpaceId space) override { return pages_->space_pages(space); }
  [[nodiscard]] bool replays_log() const override { return pages_->replays_log(); }
  void begin_at(Llsn last) override { pages_->begin_at(last); }
  [[nodiscard]] bool needs_page_images() const override { return pages_->needs_page_images(); }

 private:
  [[nodiscard]] Status refused(const std::string& what) const {
    return error_invalid_argument("this node is a reader and does not write " + what +
                                  "; to do: connect to " + writers_());
  }
  PageSource* const pages_;
  const std::function<std::string()> writers_;
};

}  // namespace strata::clients
