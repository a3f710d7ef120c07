//! A script, known to the server by the hash of its text.

use redis::Cmd;

/// A Lua script. Its hash is computed when it is made, so keep it in a `LazyLock`.
#[derive(Debug)]
pub(crate) struct Script {
    name: &'static str,
    text: String,
    sha: String,
    /// The same without its fast path, if it has one.
    #[cfg(feature = "testing")]
    pub(super) without_fast: Option<Box<Self>>,
}

impl Script {
    /// Joins the parts of a script, each followed by a line break. Shared parts come first.
    pub(crate) fn new(name: &'static str, parts: &[&str]) -> Self {
        let text: String = parts.iter().flat_map(|part| [part, "\n"]).collect();
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self {
            name,
            text,
            sha,
            #[cfg(feature = "testing")]
            without_fast: None,
        }
    }

    /// Returns the same script without its fast path, which answers and leaves the same.
    #[cfg(feature = "testing")]
    pub(crate) fn without_fast(&self) -> &Self {
        self.without_fast.as_deref().unwrap_or(self)
    }

    /// Returns the name of the verb, for messages.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the command that runs the script, which the server must know.
    pub(crate) fn call(&self, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Cmd {
        let bytes: usize = keys.iter().chain(args).map(Vec::len).sum();
        let mut cmd = Cmd::with_capacity(3 + keys.len() + args.len(), 16 + self.sha.len() + bytes);
        cmd.arg("EVALSHA").arg(&self.sha).arg(keys.len()).arg(keys).arg(args);
        cmd
    }

    /// Returns the command that loads the script. Not EVAL: since 7.4, the server can forget its scripts at any time.
    pub(crate) fn load(&self) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("SCRIPT").arg("LOAD").arg(&self.text);
        cmd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_its_parts_in_their_order() {
        let script = Script::new("test", &["local a = 1 -- no line break behind it", "return a"]);
        assert_eq!(script.name(), "test");
        assert_eq!(script.text, "local a = 1 -- no line break behind it\nreturn a\n");
        // printf 'return 1\n' | sha1sum
        assert_eq!(Script::new("test", &["return 1"]).sha, "48df9b519ca145c867b895f740b37bd891e887af");
    }

    #[test]
    fn keys_and_arguments_are_bytes() {
        let script = Script::new("test", &["return 1"]);
        let cmd = script.call(&[b"k\0\xff".to_vec()], &[b"".to_vec(), b"\r\n".to_vec()]);
        let packed = cmd.get_packed_command();
        assert!(packed.starts_with(b"*6\r\n$7\r\nEVALSHA\r\n$40\r\n"));
        assert!(packed.ends_with(b"$1\r\n1\r\n$3\r\nk\0\xff\r\n$0\r\n\r\n$2\r\n\r\n\r\n"));
    }
}
