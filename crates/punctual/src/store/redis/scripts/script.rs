//! A script as the server knows it: by the hash of its text.

use redis::Cmd;

/// A Lua script. Its hash is computed once, when it is made: keep one in a `LazyLock`.
#[derive(Debug)]
pub(crate) struct Script {
    name: &'static str,
    text: String,
    sha: String,
}

impl Script {
    /// Joins the parts of a script, each with a line break behind it: what several scripts share comes first.
    pub(crate) fn new(name: &'static str, parts: &[&str]) -> Self {
        let text: String = parts.iter().flat_map(|part| [part, "\n"]).collect();
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self { name, text, sha }
    }

    /// The verb's name, for messages.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Runs the script, which the server must know.
    pub(crate) fn call(&self, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Cmd {
        let bytes: usize = keys.iter().chain(args).map(Vec::len).sum();
        let mut cmd = Cmd::with_capacity(3 + keys.len() + args.len(), 16 + self.sha.len() + bytes);
        cmd.arg("EVALSHA").arg(&self.sha).arg(keys.len()).arg(keys).arg(args);
        cmd
    }

    /// Makes the server know the script. Not by EVAL: what came that way may be forgotten at any time since 7.4.
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
