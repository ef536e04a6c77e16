#include "transport/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "transport/internal/file_descriptor.h"

namespace strata::transport {
namespace {

class SystemEntropy final : public Entropy {
 public:
  void fill(char* out, size_t bytes) override {
    while (bytes > 0) {
      const ssize_t got = ::getrandom(out, bytes, 0);
      if (got < 0 && errno == EINTR) continue;
      STRATA_ASSERT(got > 0);
      out += got;
      bytes -= static_cast<size_t>(got);
    }
  }
};

Status failed(const char* what, const std::string& path) {
  const int error = errno;
  const std::string text = std::string(what) + " " + path + ": " + std::strerror(error);
  if (error == ENOENT) return error_not_found(text);
  if (error == EEXIST) return error_duplicate_key(text);
  return error_internal(text);
}

Status sync_folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return failed("sync", folder);
  return ok_status();
}

Status check_private(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return failed("stat", path);
  if (!S_ISREG(info.st_mode)) return error_invalid_argument("secret " + path + ": not a file");
  if (info.st_uid != ::geteuid())
    return error_invalid_argument("secret " + path + ": belongs to another user");
  if ((info.st_mode & 0177) != 0)
    return error_invalid_argument("secret " + path + ": others may use it; chmod 600");
  if (info.st_size != Secret::kBytes)
    return error_invalid_argument("secret " + path + ": must have 32 bytes");
  return ok_status();
}

}  // namespace

Entropy* system_entropy() noexcept {
  static SystemEntropy entropy;
  return &entropy;
}

Secret::~Secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

Status create_secret_file(const std::string& path) {
  // Under another name first: a secret cut short by a crash would keep the whole cluster out.
  const std::string draft = path + ".new";
  if (::access(path.c_str(), F_OK) == 0) return error_duplicate_key("secret " + path + " exists");
  if (::unlink(draft.c_str()) != 0 && errno != ENOENT) return failed("remove", draft);
  const FileDescriptor fd(
      ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return failed("create", draft);
  std::array<char, Secret::kBytes> bytes;
  system_entropy()->fill(bytes.data(), bytes.size());
  const Secret secret(bytes);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  if (::write(fd.get(), secret.bytes().data(), Secret::kBytes) != ssize_t{Secret::kBytes} ||
      ::fsync(fd.get()) != 0)
    return failed("write", draft);
  // link(), unlike rename(), does not replace what somebody else has just made.
  if (::link(draft.c_str(), path.c_str()) != 0) return failed("create", path);
  if (::unlink(draft.c_str()) != 0) return failed("remove", draft);
  return sync_folder_of(path);
}

StatusOr<Secret> load_secret(const std::string& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid() && errno == ELOOP)
    return error_invalid_argument("secret " + path + ": not a file");
  if (!fd.valid()) return failed("open", path);
  STRATA_RETURN_IF_ERROR(check_private(fd.get(), path));
  std::array<char, Secret::kBytes> bytes;
  if (::read(fd.get(), bytes.data(), bytes.size()) != ssize_t{Secret::kBytes})
    return failed("read", path);
  Secret secret(bytes);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return secret;
}

Mac hmac_sha256(const Secret& secret, Bytes message) noexcept {
  Mac mac;
  unsigned int bytes = 0;
  const auto* const done =
      ::HMAC(EVP_sha256(), secret.bytes().data(), Secret::kBytes,
             reinterpret_cast<const unsigned char*>(message.data()), message.size(),
             reinterpret_cast<unsigned char*>(mac.data()), &bytes);
  STRATA_ASSERT(done != nullptr && bytes == kMacBytes);  // fails only without memory
  return mac;
}

bool same_bytes(Bytes a, Bytes b) noexcept {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace strata::transport
