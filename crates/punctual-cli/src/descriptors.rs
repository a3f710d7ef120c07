//! Descriptors of the process: each connection and each file needs one.

use crate::errors::Failure;

/// The descriptors that a command needs besides its own: of its runtime, and of a store in a file.
#[cfg(unix)]
const NEEDED: usize = 32;

/// Checks that there are enough of them for any command, and raises the limit if there are not. Otherwise the runtime would panic, or a store
/// would say that it cannot open a file.
///
/// # Errors
/// `failed`, with what to try.
pub(crate) fn check() -> Result<(), Failure> {
    #[cfg(unix)]
    {
        use rustix::{
            io::{Errno, dup},
            stdio::stdin,
        };
        let have = || (0..NEEDED).map(|_| dup(stdin())).collect::<Result<Vec<_>, _>>();
        let had = have().or_else(|_| {
            raise();
            have()
        });
        if let Err(error @ (Errno::MFILE | Errno::NFILE)) = had {
            let message = format!("a command needs {NEEDED} free file descriptors, and there are fewer");
            return Err(Failure::failed(message).why(error.to_string()).hint(
                "raise the limit: ulimit -n 1024; if it is high already, look at what else has files open",
            ));
        }
    }
    Ok(())
}

/// Lets the process have as many descriptors as it may. The usual limit of 1,024 is far below what a server, many children or a
/// forwarder has.
pub(crate) fn raise() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        if current != maximum {
            // With fewer of them, connections wait for each other.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        }
    }
}
