// What a change of a row means for its bytes, for changes that nobody above the kernel asked for:
// those that a foreign key makes in its child (references.h). The kernel knows keys and rows as
// bytes only, so it asks whoever made them. Implemented above the engine.
#pragma once

#include <memory>
#include <string>

#include "engine/kernel.h"

namespace strata::engine {

// Of one table, for one thread at a time. What a call gives is valid until the next one.
class TableCodec {
 public:
  struct Row {
    RowImage image;  // the new row; not of a row that goes
    Bytes old_key;
    const EntryImage* old_entries = nullptr;  // of a row that goes: all
    uint32_t old_entry_count = 0;
    bool unchanged = false;
  };
  virtual ~TableCodec() = default;
  // Of the row that the cursor has fetched: its entries; itself with the key's columns set to NULL;
  // itself with the values that the parent's row has, which another cursor has fetched.
  // kOutOfRange: a value does not fit, or would be NULL where that cannot be.
  virtual Status remove(TableCursor* at, Row* out) = 0;
  virtual Status set_null(TableCursor* at, const ForeignKeySpec& key, Row* out) = 0;
  virtual Status copy_from(TableCodec* parent, TableCursor* parent_at, TableCursor* at,
                           const ForeignKeySpec& key, Row* out) = 0;
};

// Thread-safe.
class TableCodecs {
 public:
  virtual ~TableCodecs() = default;
  // On the thread of a session that is about to change rows of the table, every time it begins to
  // in a transaction: rows may have been cached.
  virtual void about_to_change(const TableSpec& spec) = 0;
  virtual StatusOr<std::unique_ptr<TableCodec>> open(const TableSpec& spec) = 0;
  // Fills in IndexSpec::parts and most_key, of a table that has none.
  virtual Status describe(TableSpec* spec) = 0;
  // A table's name as people write it, and as names of constraints are made of it: the
  // dictionary's are encoded.
  virtual std::string shown_name(Bytes name) = 0;
};

}  // namespace strata::engine
