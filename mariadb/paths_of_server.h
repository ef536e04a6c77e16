// Folders of this server.
#pragma once

#include <string>

namespace strata::glue {

// Where the engine's own files are: strata_data_dir, below the server's folder unless absolute.
std::string data_folder();

// A folder of the server's that is of a database of users'.
bool is_database_folder(const std::string& name);

// Files that the database's own take the place of are kept in <data folder>/replaced, for people.
// False: it was not there, or (reported) could not be moved.
bool move_to_replaced(const std::string& from, const std::string& name);

}  // namespace strata::glue
