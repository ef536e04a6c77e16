// Views, triggers and options of databases where several servers write: small files of each
// server's folder, which MariaDB gives no engine to keep. Rows of the kernel's journal are what all
// servers have; each makes its files what the rows say, and rows of what it has changed itself.
//
// An *object* is a view (one file), the options of a database (db.opt), or all triggers of one
// table (a .TRG and the .TRN of each), of tables of ours only. What a server has last seen in a row
// and in its files alike is the object's *base*; it tells a change made here from one made
// elsewhere, and is kept in a file of the data folder.
//
//   OF1  Files differ from the base: this server has changed the object. Its row differs: another
//        has. Nothing is ever taken from the one or the other without that comparison, so that a
//        statement of a server that was killed before its row was written is found at its next
//        start.
//   OF2  Both differ: what was written last counts, the file; but the row, where the files are gone
//        (a DROP takes only what it found), where they were left by a server that was killed, and
//        of triggers. After a power loss the row counts in any case: files may be gone that were
//        not synced.
//   OF3  Rows change one after the other in the whole cluster: whoever changes one writes the
//        version's row first and has it locked until the commit. So all servers end with the same.
//   OF4  Triggers of a table change under its name (dict/schema_changes.h), and their row with the
//        statement, before it is answered: CREATE and DROP TRIGGER lock it (AG5), DROP TABLE erases
//        it in its transaction, RENAME too, and then writes that of the new name. A server reads
//        the row when it reads the definition of the table: no statement anywhere sees the table
//        without what an answered one has made.
//   OF5  Files change under the exclusive metadata lock of their table, view or database, and the
//        server forgets what it remembers of it. Whoever uses it keeps the old one until its
//        transaction ends.
//   OF6  What cannot be read or written is left as it is, on both sides, and tried again.
#pragma once

#include "mariadb/path.h"
#include "mariadb/server.h"

namespace strata::glue {

// Once the kernel is open and the folders of databases are there, before clients. Looks once, and
// has a thread that goes on.
void start_object_files();
void stop_object_files();  // again: nothing

// OF4. The transaction has dropped or renamed the table, and is about to commit.
Status erase_triggers(engine::Session* session, const TableName& table);
// OF4. The transaction has the table's name; whether what this server has is what all have.
StatusOr<bool> has_current_triggers(const TableName& table);
// OF4. Makes the row what the files say, and commits or rolls back.
Status publish_triggers(engine::Session* session, const TableName& table);
// OF4. The definition of the table is being read here, or it is new.
Status fetch_triggers(const TableName& table);
// A table that has triggers was renamed, or may have been: publish_renamed() at the statement's
// end.
StatusOr<bool> has_triggers(const TableName& table);
Status publish_renamed(const TableName& table);

// The transaction drops the database.
Status erase_objects_of_database(engine::Session* session, const std::string& schema);
// Files of what has no row any more go from the folder of a database that another server has
// dropped. The caller has its exclusive metadata lock.
void remove_dropped_objects(const std::string& schema);

}  // namespace strata::glue
