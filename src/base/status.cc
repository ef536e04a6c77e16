#include "base/status.h"

#include "base/assert.h"

namespace strata {
namespace {

struct Described {
  std::string_view name, cause, remedy;
  ErrorClass cls = ErrorClass::fatal;
};

Described described(Error error) noexcept {
  switch (error) {
    case Error::ok:
      return {"ok", "nothing is wrong", "nothing", ErrorClass::none};
#define STRATA_ERROR(name, number, cls, cause, remedy) \
  case Error::name:                                    \
    return {#name, cause, remedy, ErrorClass::cls};
#include "base/errors.def"
#undef STRATA_ERROR
  }
  return {"unknown", "an error without a name", "keep the error log and report it",
          ErrorClass::fatal};
}

bool is_known(int number) noexcept {
  switch (number) {
#define STRATA_ERROR(name, number, cls, cause, remedy) case number:
#include "base/errors.def"
#undef STRATA_ERROR
    case 0:
      return true;
    default:
      return false;
  }
}

std::string_view message_of(const Status& status) noexcept {
  return {status.message().data(), status.message().size()};
}

}  // namespace

Error error_of(const Status& status) noexcept {
  return is_known(status.raw_code()) ? static_cast<Error>(status.raw_code()) : Error::internal;
}

ErrorClass error_class(const Status& status) noexcept {
  return status.ok() ? ErrorClass::none : described(error_of(status)).cls;
}

std::string_view error_name(Error error) noexcept { return described(error).name; }

Status with_message(const Status& status, std::string_view message) {
  return Status(static_cast<StatusCode>(status.raw_code()),
                absl::string_view(message.data(), message.size()));
}

Status status_from_wire(uint8_t number, std::string_view message) {
  STRATA_ASSERT(number != 0);
  if (static_cast<Error>(number) == Error::ended) return error_peer_down(message);  // ER7
  if (is_known(number))
    return Status(static_cast<StatusCode>(number),
                  absl::string_view(message.data(), message.size()));
  return error_outcome_unknown("error " + std::to_string(number) +
                               ", which this version does not know" +
                               (message.empty() ? "" : ": " + std::string(message)));
}

std::string cause_of(const Status& status) {
  const std::string_view message = message_of(status);
  const std::string_view cause = message.substr(0, message.rfind(kRemedyMark));
  return std::string(cause.empty() ? described(error_of(status)).cause : cause);
}

std::string remedy_of(const Status& status) {
  const std::string_view message = message_of(status);
  const size_t at = message.rfind(kRemedyMark);
  return std::string(at == std::string_view::npos ? described(error_of(status)).remedy
                                                  : message.substr(at + kRemedyMark.size()));
}

std::string cause_and_remedy(const Status& status) {
  return cause_of(status).append(kRemedyMark).append(remedy_of(status));
}

Status with_remedy(const Status& status, std::string_view remedy) {
  if (status.ok() || message_of(status).find(kRemedyMark) != std::string_view::npos) return status;
  return with_message(status, cause_of(status).append(kRemedyMark).append(remedy));
}

}  // namespace strata
