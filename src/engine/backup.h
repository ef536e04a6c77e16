// A copy of the database that is made while others read, write and change tables. What it leaves is
// a data folder as a crash would have left it at one moment, the cut: opening it is its recovery.
// docs/adr/2026-11-26-online-backup.md says why so.
//   BU1  The pages are copied at any time between a checkpoint and the cut, each as the source
//        reads it: whole, or read again (a read beside a write may be torn). Every change from that
//        checkpoint to the cut is in the log that is copied, so redo makes each page what it was at
//        the cut; no page is newer than that log (K9).
//   BU2  The log from the checkpoint on stays until it is copied (bufpool CP8).
//   BU3  Of a space that is made meanwhile the log has everything; it has an empty file at least. A
//        space whose file goes meanwhile was dropped in the log that is copied, and redo skips it.
//   BU4  The control file is written last, after all else is durable and every group of the copied
//        log has been read once more. A folder without it is not opened (E20).
//   BU5  The backup gives way: when the server has no room for more log, what is kept for the
//        backup goes, and the backup fails.
//   BU6  With `since`, pages that have not changed after it are left out (holes of their files).
//        Laid over the pages of the backup whose checkpoint_llsn that is, they are those of a whole
//        one; spaces without a file are gone.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "engine/kernel.h"

namespace strata::engine {

struct BackupOptions {
  std::string folder;  // absolute; made when absent, else it must be empty
  Llsn since;          // BU6; zero: all pages
  // Called often, on the backup's thread; what it fails with ends the backup.
  std::function<Status()> go_on;
};

// One at a time. Used by one thread, in this order; after a failure it is only destroyed. The
// folder is left as it is then, without a control file.
class Backup {
 public:
  // Makes a checkpoint, so that there is little to redo later. unsupported: the data is not in the
  // kernel's folder; in_use: there is one already, or the folder is not empty.
  static StatusOr<std::unique_ptr<Backup>> begin(Kernel* kernel, BackupOptions options);
  ~Backup();
  Backup(const Backup&) = delete;
  Backup& operator=(const Backup&) = delete;

  Status copy_pages();
  // What is committed when this is called is in the backup; what commits later is not. Quick.
  Status cut();
  Status finish();

 private:
  struct Impl;
  explicit Backup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata::engine
