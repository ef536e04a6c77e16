#include "engine/internal/unlogged.h"

#include <limits>
#include <utility>

#include "engine/internal/kernel_impl.h"

namespace strata::engine {
namespace {

class UnsyncedFile final : public File {
 public:
  explicit UnsyncedFile(std::unique_ptr<File> inner) : inner_(std::move(inner)) {}
  Status read_at(uint64_t offset, void* data, size_t bytes, size_t* got) override {
    return inner_->read_at(offset, data, bytes, got);
  }
  Status write_at(uint64_t offset, const void* data, size_t bytes) override {
    return inner_->write_at(offset, data, bytes);
  }
  Status sync_data() override { return ok_status(); }
  StatusOr<uint64_t> size() override { return inner_->size(); }
  Status allocate(uint64_t bytes) override { return inner_->allocate(bytes); }
  Status truncate(uint64_t bytes) override { return inner_->truncate(bytes); }
  [[nodiscard]] const std::string& path() const override { return inner_->path(); }
  [[nodiscard]] int descriptor() const override { return inner_->descriptor(); }

 private:
  const std::unique_ptr<File> inner_;
};

class UnsyncedFileSystem final : public FileSystem {
 public:
  explicit UnsyncedFileSystem(FileSystem* inner) : inner_(inner) {}
  StatusOr<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> file, inner_->open(path, options));
    return std::unique_ptr<File>(std::make_unique<UnsyncedFile>(std::move(file)));
  }
  Status make_directory(const std::string& path) override { return inner_->make_directory(path); }
  Status remove(const std::string& path) override { return inner_->remove(path); }
  Status rename(const std::string& from, const std::string& to) override {
    return inner_->rename(from, to);
  }
  StatusOr<bool> exists(const std::string& path) override { return inner_->exists(path); }
  StatusOr<std::vector<std::string>> list(const std::string& directory) override {
    return inner_->list(directory);
  }
  Status sync_directory(const std::string& /*path*/) override { return ok_status(); }
  StatusOr<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
    return inner_->lock_file(path);
  }

 private:
  FileSystem* const inner_;
};

class ForgettingLog final : public LogSink {
 public:
  [[nodiscard]] Lsn begin_lsn() const override { return kFirstLsn; }
  Status prepare_room(Lsn /*end*/) override { return ok_status(); }
  [[nodiscard]] Lsn room_end() const override {
    return Lsn{std::numeric_limits<uint64_t>::max() / 2};
  }
  Status append(Lsn /*at*/, Bytes /*bytes*/) override { return ok_status(); }
  Status sync() override { return ok_status(); }
  StatusOr<size_t> read(Lsn /*at*/, char* /*out*/, size_t /*bytes*/) override { return size_t{0}; }
  Status truncate_below(Lsn /*lsn*/) override { return ok_status(); }
  [[nodiscard]] bool is_stream() const override { return true; }
  Status cut_at(Lsn /*end*/) override { return ok_status(); }
};

class ControlInMemory final : public ControlStore {
 public:
  [[nodiscard]] const ControlData& data() const noexcept override { return data_; }
  Status publish(const ControlData& data) override {
    data_ = data;
    return ok_status();
  }

 private:
  ControlData data_;
};

}  // namespace

std::unique_ptr<FileSystem> make_unsynced_file_system(FileSystem* inner) {
  return std::make_unique<UnsyncedFileSystem>(inner);
}
std::unique_ptr<LogSink> make_forgetting_log() { return std::make_unique<ForgettingLog>(); }
std::unique_ptr<ControlStore> make_control_in_memory() {
  return std::make_unique<ControlInMemory>();
}

// E30. What an earlier one has left: the files of pages, and of sorting.
Status KernelImpl::remove_left_files() {
  for (const char* folder : {"pages", "sort"}) {
    STRATA_RETURN_IF_ERROR(files->make_directory(path(folder)));
    STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->list(path(folder)));
    for (const std::string& name : names)
      STRATA_RETURN_IF_ERROR(files->remove(path(folder) + "/" + name));
  }
  return ok_status();
}

Status KernelImpl::open_unlogged() {
  if (seams.page_source != nullptr || seams.log_sink != nullptr || seams.attach)
    return error_invalid_argument("a kernel without a log has its pages in its own folder");
  unsynced_files = make_unsynced_file_system(files);
  files = unsynced_files.get();
  STRATA_RETURN_IF_ERROR(files->make_directory(options.directory));
  STRATA_RETURN_IF_ERROR(lock_directory());
  STRATA_RETURN_IF_ERROR(remove_left_files());
  own_sink = make_forgetting_log();
  own_control = make_control_in_memory();
  control = own_control.get();
  return create_database();
}

}  // namespace strata::engine
