# The copied tests of Galera's suites, on servers of one cluster that run already: nothing of Galera's is needed.
package My::Suite::Nodes;

use warnings;

@ISA = qw(My::Suite);

bless { };
