// Foreign keys: what a change of a row asks of other tables, and does to them. One object per
// session; a session whose tables have none makes none.
//
//   FK1  Before a row gets a key that refers to a parent, the parent's record is locked, shared,
//        until the transaction ends; in the index that the key names. It waits for whoever is
//        changing that record, and for nobody else: children of one parent do not wait for each
//        other. A child's entry is in its index only after that, so nobody who looks for children
//        has to wait for one whose parent is still being looked for.
//   FK2  A row that goes, or gets another key, is marked first, which waits for the shared locks
//        (row, RW3); then its children are looked for: whoever comes later finds the mark.
//   FK3  Children are what is there now, whatever the view. They are locked before they count:
//        shared where they are in the way, exclusively where they go along.
//   FK4  What follows from a row is part of its change (E8): undone with it, row by row, in the
//        same transaction, up to kCascadesMost tables deep. A cascade never updates a table that an
//        update above it is changing. The server hears nothing of such rows.
//   FK5  A child knows its parent by name; a parent has the names of its children. Both are changed
//        by the DDL that makes or removes either, under locks on both names, and a table in use
//        gets to know at once (Table::references()). Tables with internal names, the copies of an
//        ALTER, have foreign keys but are nobody's children.
//   FK6  A parent that another definition has taken the place of (ALTER) while a child's row was
//        being made is asked again once the row is there.
//   FK7  With the checks off nothing of this happens, but for FK5; names that nobody has are
//        remembered until somebody gets them.
//   FK8  Keys are compared as bytes: the images of a value are the same in every index over columns
//        of one type (KeyPartSpec), but for NULL flags and order. A value whose image is longer
//        than an entry keeps whole cannot be referred to.
//   FK9  A cascade changes a table while nobody replaces or copies it, however it got there: the
//        server need not have locked it. It uses the table's name until its transaction ends; DDL
//        that copies, empties, renames, alters or drops a table, or builds an index of it, waits
//        for that and keeps others away: the copy of an ALTER until it takes the place or is given
//        up, from its original and from the parents of its new keys. A statement whose view of who
//        refers to whom is older than such DDL fails, and can be tried again (definition_changed).
//   FK10  A row is checked index by index, in the order in which they are written, the clustered
//         one first: once its old key there is marked, children of that key are looked for; before
//         the new one is written, parents of that. Until its turn comes an index has the old entry,
//         and that counts, as a child that is in the way and as a parent. Who refers to itself can
//         tell: it is as in InnoDB.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/internal/kernel_impl.h"
#include "engine/table_codec.h"

namespace strata::engine {

constexpr uint32_t kCascadesMost = 15;

// One foreign key between two tables as they are.
struct Reference {
  std::string parent_name;  // table_key()
  std::string child_name;
  TableRef parent;  // null: there is none, or its columns do not fit
  TableRef child;
  ForeignKeySpec key;
  uint32_t parent_index = 0;
  uint32_t child_index = 0;
  uint32_t parent_most_key = UINT32_MAX;
  uint32_t child_most_key = UINT32_MAX;
  std::vector<KeyPartSpec> parent_parts;  // as many as the key has
  std::vector<KeyPartSpec> child_parts;
  bool names_row = false;  // the parent's whole clustered key
};

enum class KeyMade : uint8_t { kOk, kNull, kTooLong };
// The beginning of a key in the other table's index.
KeyMade parent_key(const Reference& reference, Bytes child_key, std::string* out);
KeyMade child_key(const Reference& reference, Bytes parent_key, std::string* out);

// Whatever the case: a parent that comes later may spell its columns in another one.
bool same_column(Bytes a, Bytes b) noexcept;
// Finds the indexes. False: there are none, or types differ. `child` and `parent` have their parts.
bool fit(const ForeignKeySpec& key, const TableSpec& child, const TableSpec& parent,
         Reference* out);
// With the parts, whoever has them.
Status describe(const KernelImpl& kernel, TableSpec* spec);

TableReferences references_in(const TableSpec& spec);
// Columns of the table that get other names: in its keys, on both sides of those to itself.
void rename_columns(const std::string& own_name, const std::vector<ColumnRename>& renamed,
                    TableSpec* spec);
// Of a table with foreign keys that gets another name: theirs that were made of the old one, as
// TableCodecs::shown_name() has it, and the name of the parent where that is the table itself.
void rename_references(const std::string& old_name, const std::string& new_name,
                       const std::string& from, const std::string& to, TableSpec* spec);

// The keys of one row before and after its change; an index in neither list keeps its entry.
struct RowKeys {
  Bytes old_key = {};  // not of a new row
  const EntryImage* old_entries = nullptr;
  uint32_t old_count = 0;
  Bytes new_key = {};  // not of a row that goes
  const EntryImage* new_entries = nullptr;
  uint32_t new_count = 0;

  [[nodiscard]] bool deletes() const noexcept { return new_key.data() == nullptr; }
  [[nodiscard]] bool old_of(uint32_t index, Bytes* out) const;
  [[nodiscard]] bool new_of(uint32_t index, Bytes* out) const;
};

// Of one table, in both directions.
struct Links {
  TableRef table;
  const TableReferences* seen = nullptr;
  std::vector<Reference> parents;   // by name of the key
  std::vector<Reference> children;  // by schema and name of the key
};

class References {
 public:
  using LinksRef = std::shared_ptr<const Links>;

  explicit References(Session::Impl* session) : s_(session) {}

  StatusOr<LinksRef> links_of(Table* table);
  // FK1, for the keys of one index. `without`: the key that the change comes from.
  Status check_parents(const Links& links, const RowKeys& keys, uint32_t index, Bytes key,
                       const Reference* without);
  // FK6
  Status confirm_parents(LinksRef links, const RowKeys& keys, const Reference* without);
  // FK2 to FK4, for a row whose old key in the index is marked. `unwritten`: its new clustered
  // payload; empty: that is in its place. `above`: the changes it follows from, `without`: the key
  // by which the last of them got here.
  struct Frame {
    const Table* table;
    bool deletes;
    const Frame* above;
  };
  Status follow(const Links& links, const RowKeys& keys, uint32_t index, Bytes unwritten,
                const Frame* above, const Reference* without);
  void transaction_ended() noexcept { ++transaction_; }

 private:
  struct OpenCodec {
    TableRef table;
    uint32_t depth = 0;
    uint64_t transaction = 0;
    std::unique_ptr<TableCodec> codec;
  };
  Status resolve(Table* table, Links* out);
  Status fail(const Reference& reference, Status why);
  Status find_parent(const Reference& reference, Bytes key);
  struct NewRow {
    Bytes key;
    Bytes unwritten;
  };
  Status apply(const Reference& reference, Bytes key, bool deletes, const NewRow& parent,
               const Frame* frame);
  Status change_child(const Reference& reference, TableCursor* at, bool deletes,
                      const NewRow& parent, const Frame* frame, uint32_t depth);
  Status remove_row(const Reference& reference, const TableCodec::Row& row, const Frame* frame);
  Status update_row(const Reference& reference, const TableCodec::Row& row, const Frame* frame);
  StatusOr<TableCodec*> codec_of(const TableRef& table, uint32_t depth);

  Session::Impl* const s_;
  std::vector<LinksRef> links_;
  std::vector<OpenCodec> codecs_;
  uint64_t transaction_ = 0;
  std::string key_, other_;  // scratch of check_parents()
};

// What RowChange asks at each key of a row (FK10): a new one that it is about to write, an old one
// that it has marked.
class RowReferences {
 public:
  // Of a statement's row. `parents`: null: there are none to be looked for.
  RowReferences(Session::Impl* session, Table* table, const RowKeys* keys, const Links* parents)
      : s_(session), table_(table), keys_(keys), parents_(parents) {}
  // Of a row that follows from others, by `from`.
  RowReferences(Session::Impl* session, Table* table, const RowKeys* keys, const Links* parents,
                const References::Frame* above, const Reference* from)
      : s_(session), table_(table), keys_(keys), parents_(parents), above_(above), from_(from) {}

  Status before(uint32_t index, Bytes key) const {
    if (parents_ == nullptr) return ok_status();
    return s_->references->check_parents(*parents_, *keys_, index, key, from_);
  }
  Status after(uint32_t index, Bytes unwritten = {}) const {
    if (table_->references() == nullptr) return ok_status();  // FK2: after the row was marked
    if (above_ == nullptr) return s_->follow(table_, *keys_, index, unwritten);
    STRATA_ASSIGN_OR_RETURN(const References::LinksRef links, s_->references->links_of(table_));
    return s_->references->follow(*links, *keys_, index, unwritten, above_, from_);
  }

 private:
  Session::Impl* const s_;
  Table* const table_;
  const RowKeys* const keys_;
  const Links* const parents_;
  const References::Frame* const above_ = nullptr;
  const Reference* const from_ = nullptr;
};

}  // namespace strata::engine
