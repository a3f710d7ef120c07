//! Descriptors of the process: each connection needs one.

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
