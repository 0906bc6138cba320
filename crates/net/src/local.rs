//! A check of Unix sockets whose paths a peer sent, which decides whether this process may connect to them.
//!
//! A malicious peer can name any path of the machine. The client would trust the process behind that socket like the
//! peer, and a connection alone may start a service (socket activation). So the socket and the listening process must
//! belong to root or to the user of this process. For all other sockets a caller uses the TCP address.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Returns whether a server that runs as this user is trusted: root, or the user of this process.
pub fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// Checks, before connecting, that the path itself is a socket of a trusted user.
///
/// # Errors
/// `PermissionDenied` when the socket belongs to another user, `InvalidInput` when the path is no socket, and the
/// errors of `lstat(2)`.
pub fn check_path(path: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(path)?;
    if !found.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not a socket", path.display())));
    }
    check_user(found.uid())
}

/// Checks, after connecting, that a trusted user listens: the path may have been replaced meanwhile.
///
/// # Errors
/// `PermissionDenied` when another user listens, and the errors of `getsockopt(2)`.
pub fn check_peer(socket: impl AsFd) -> io::Result<()> {
    check_user(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// Checks the user of a server, for callers that already know the peer's credentials.
pub(crate) fn check_user(user: u32) -> io::Result<()> {
    if is_trusted(user) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("the socket belongs to user {user}, but only root and the user of this process are trusted"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn only_sockets_of_trusted_users_are_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        check_path(&path).unwrap();
        check_peer(UnixStream::connect(&path).unwrap()).unwrap();
        let kind = |path: &Path| check_path(path).unwrap_err().kind();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, b"").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(kind(&file), io::ErrorKind::InvalidInput);
        assert_eq!(kind(&link), io::ErrorKind::InvalidInput);
        assert_eq!(kind(&dir.path().join("none")), io::ErrorKind::NotFound);
        // Only root can change the owner of a socket.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(4242), None).unwrap();
            assert_eq!(kind(&path), io::ErrorKind::PermissionDenied);
        }
        drop(listener);
        let own = rustix::process::geteuid().as_raw();
        assert!(is_trusted(0) && is_trusted(own) && !is_trusted(own + 1));
    }
}
