//! Failures of commands: what failed, what the user can do next, and the exit code for scripts.

use std::fmt;

/// Exit codes of all commands; docs/commands.md documents them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// Success: the command did everything that the user asked for.
    Done = 0,
    /// Failure: something failed. The command did everything else that the user asked for.
    Failed = 1,
    /// Usage error: the command line or a configuration file is wrong.
    Usage = 2,
    /// Unreachable: the command cannot reach the cluster.
    Unreachable = 3,
    /// Damage left: `weir fsck` found damage and did not repair it.
    Left = 4,
    /// Incomplete check: `weir fsck` could not check everything.
    Unchecked = 8,
    /// Interrupted: SIGINT or SIGTERM stopped the command.
    Interrupted = 130,
}

/// Advice for a command that failed because the cluster does not answer.
pub const UNREACHABLE: &str =
    "is the mgr running there? Check WEIR_URL and the port; \"weir up\" starts a cluster on this machine";

/// Advice for a command that failed because an iod does not answer, although the mgr answers.
const IOD_DOWN: &str =
    "\"weir status\" shows which iods are down; start that iod on its machine, then run the command again";

/// A failure of a command, as two lines for the user: the first line says what failed, and the second line says what to
/// do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The exit code of the failed command.
    pub code: Exit,
    /// The text of the first line: what failed, and why.
    pub what: String,
    /// The text of the second line: what the user can do next.
    pub next: Option<String>,
    /// The name of the file that caused the failure, if it differs from the name that the command was processing.
    pub subject: Option<String>,
}

/// The outcome of a command. `Ok` holds an exit code; in this case, the command has already printed its errors.
pub type Outcome = Result<Exit, Failure>;

impl Failure {
    /// Returns a failure with the exit code [`Exit::Failed`].
    pub fn new(what: impl fmt::Display) -> Self {
        Failure { code: Exit::Failed, what: what.to_string(), next: None, subject: None }
    }

    /// Returns a failure from a message. The text after the first semicolon of the message becomes the advice on what
    /// to do next.
    pub fn from_message(message: impl fmt::Display) -> Self {
        let text = message.to_string();
        match text.split_once("; ") {
            Some((what, next)) => Failure::new(what).next(next),
            None => Failure::new(text),
        }
    }

    /// Returns a failure of the command line or of a configuration file.
    pub fn usage(what: impl fmt::Display) -> Self {
        Failure { code: Exit::Usage, ..Failure::new(what) }
    }

    /// Returns the failure of a command that the user stopped.
    pub fn interrupted() -> Self {
        Failure { code: Exit::Interrupted, ..Failure::new("interrupted") }
    }

    /// Sets the advice on what to do next, which is the second line.
    pub fn next(self, next: impl fmt::Display) -> Self {
        Failure { next: Some(next.to_string()), ..self }
    }

    /// Sets the name that caused the failure, unless it is already set.
    pub fn of(self, subject: impl fmt::Display) -> Self {
        let subject = self.subject.unwrap_or_else(|| subject.to_string());
        Failure { subject: Some(subject), ..self }
    }

    /// Replaces a temporary name in the texts of the failure by the final name, which the user knows.
    pub fn renamed(self, temporary: &[u8], name: &[u8]) -> Self {
        let what = self.what.replace(&*String::from_utf8_lossy(temporary), &crate::show::path(name));
        Failure { what, ..self }
    }

    /// Prepends a name, such as the path of a file, to the text that says what failed.
    pub fn about(self, name: impl fmt::Display) -> Self {
        Failure { what: format!("{name}: {}", self.what), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weir: {}", self.what)?;
        match &self.next {
            Some(next) => write!(f, "\n      {next}"),
            None => Ok(()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind::*;
        let text = error.to_string();
        let what = match error.raw_os_error() {
            // Remove the error number from a text such as "No such file or directory (os error 2)", because the words
            // already name the error.
            Some(_) => text.split(" (os error").next().unwrap_or(&text).to_lowercase(),
            // Keep the upper-case letters of this text, because it may contain names, and commands that the user can
            // type.
            None => text,
        };
        let failure = Failure::new(what);
        match error.kind() {
            PermissionDenied => failure.next("check its owner and mode, or run as another user"),
            StorageFull | QuotaExceeded => failure.next("free some space there, then run the same command again"),
            _ => failure,
        }
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Self {
        std::io::Error::from(error).into()
    }
}

impl From<client::BadTarget> for Failure {
    fn from(bad: client::BadTarget) -> Self {
        let bad = (bad.text, bad.why);
        Failure::usage(format!("{}: not a name on a Weir file system: {}", crate::show::path(bad.0.as_bytes()), bad.1))
            .next("names look like weir://host[:port]/path, for example weir://127.0.0.1:2049/data")
    }
}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Self {
        let failure = Failure::from_message(&error);
        match error.kind() {
            // Add no advice: the message about an operation in doubt already says what the user can do.
            client::ErrorKind::Connection if error.is_in_doubt() => Failure { code: Exit::Unreachable, ..failure },
            // Keep the exit code [`Exit::Failed`]: only an iod is unreachable, so the cluster as a whole is reachable.
            client::ErrorKind::Connection if error.is_of_iod() => failure.next(IOD_DOWN),
            client::ErrorKind::Connection => Failure { code: Exit::Unreachable, ..failure }.next(UNREACHABLE),
            client::ErrorKind::Usage => Failure { code: Exit::Usage, ..failure },
            client::ErrorKind::Status(types::Status::NoSpc | types::Status::DQuot) => {
                failure.next("free some space (\"weir df\" shows where), then run the same command again")
            }
            client::ErrorKind::Status(types::Status::Delay) if failure.next.is_none() => {
                failure.next("\"weir status\" shows what the cluster waits for")
            }
            client::ErrorKind::Status(_) | client::ErrorKind::Protocol | client::ErrorKind::LockLost => failure,
        }
    }
}

impl From<mgr::Error> for Failure {
    fn from(error: mgr::Error) -> Self {
        let code = match &error {
            mgr::Error::BadConfig { .. } => Exit::Usage,
            _ => Exit::Failed,
        };
        Failure { code, ..Failure::from_message(error) }
    }
}

impl From<iod::StoreError> for Failure {
    fn from(error: iod::StoreError) -> Self {
        Failure::from_message(error)
    }
}

impl From<iod::StartError> for Failure {
    fn from(error: iod::StartError) -> Self {
        Failure::from_message(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn told_splits_a_message_at_its_first_semicolon() {
        let failure = Failure::from_message("no such store; make it; or not");
        assert_eq!((failure.what.as_str(), failure.next.as_deref()), ("no such store", Some("make it; or not")));
        assert_eq!(Failure::from_message("plain").next, None);
    }

    #[test]
    fn renamed_replaces_the_temporary_name_in_a_message() {
        let failure = Failure::new("creating \".weir-cp-1\": no space left").renamed(b".weir-cp-1", b"a b");
        assert_eq!(failure.what, "creating \"a b\": no space left");
        assert_eq!(failure.of("x").of("y").subject.as_deref(), Some("x"));
    }

    #[test]
    fn a_failure_prints_one_line_and_one_hint() {
        let error = std::io::Error::from_raw_os_error(2);
        let failure = Failure::from(error).about("/nowhere").next("make it first");
        assert_eq!(failure.to_string(), "weir: /nowhere: no such file or directory\n      make it first");
        assert_eq!(failure.code, Exit::Failed);
    }
}
