// The node's control file: identity of the database and the latest checkpoint. Two slots of a block
// each, written in turns, each with a sequence number and a crc32c, so that a torn write leaves the
// other.
//   C1  publish() is durable when it returns.
//   C2  open() refuses a foreign, other-format or damaged file with the path and the remedy;
//       nothing is overwritten.
//   C3  What open() returned is durable: a power loss after it does not bring an older slot back.
//   C4  Slot n holds the sequence numbers n modulo 2, and two whole slots hold neighbouring ones
//       (they start again behind the largest). Anything else is damage.
#pragma once

#include <memory>
#include <string>

#include "base/data_format.h"
#include "base/ids.h"
#include "base/status.h"
#include "io/file_system.h"
#include "page/page.h"

namespace strata {

struct ControlData {
  uint64_t database_id = 0;
  uint32_t data_format = kDataFormat;
  uint32_t page_bytes = kPageBytes;
  std::string profile;  // e.g. "monolithic"; at most 63 bytes
  NodeId node{1};
  Lsn checkpoint_lsn;      // redo starts here
  uint64_t llsn_bias = 0;  // of the log at checkpoint_lsn: the reader starts with it (LR4)
  uint64_t checkpoint_count = 0;
  bool clean_shutdown = false;  // nothing after checkpoint_lsn
};

// Where a node keeps its control data. Under profiles whose compute nodes keep nothing the registry
// takes the file's place.
class ControlStore {
 public:
  virtual ~ControlStore() = default;
  // What was published last; database_id 0: nothing yet. Stays valid until the next publish().
  [[nodiscard]] virtual const ControlData& data() const noexcept = 0;
  virtual Status publish(const ControlData& data) = 0;  // C1. Blocks; one caller at a time
};

class ControlFile final : public ControlStore {
 public:
  static StatusOr<std::unique_ptr<ControlFile>> create(FileSystem* fs, const std::string& path,
                                                       const ControlData& data);
  // kNotFound when absent; unsupported for other formats; kDataLoss when damaged or
  // foreign.
  static StatusOr<std::unique_ptr<ControlFile>> open(FileSystem* fs, const std::string& path);
  [[nodiscard]] const ControlData& data() const noexcept override { return data_; }
  Status publish(const ControlData& data) override;

 private:
  ControlFile(std::unique_ptr<File> file, ControlData data, uint64_t sequence);
  std::unique_ptr<File> file_;
  ControlData data_;
  uint64_t sequence_;
};

}  // namespace strata
