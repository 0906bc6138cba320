//! Validation of file names: servers validate the names in requests, and clients validate the names in replies.

use crate::limits::NAME_MAX;
use crate::status::Status;

/// Checks that `name` is a valid file name: 1 to [`NAME_MAX`] bytes without `/` and NUL, and neither `.` nor `..`.
///
/// The errors are those of RFC 8881 §14.5 and of Linux: `Inval` for an empty name, `NameTooLong`, and `BadName` for all
/// other invalid names.
pub fn check(name: &[u8]) -> Result<(), Status> {
    match name {
        [] => Err(Status::Inval),
        b"." | b".." => Err(Status::BadName),
        _ if name.len() > NAME_MAX => Err(Status::NameTooLong),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Status::BadName),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_their_directory_are_refused() {
        let longest = vec![b'n'; NAME_MAX];
        for name in [&b"a"[..], b"...", b".a", b"a b\n", b"\xff\xfe", &longest] {
            assert_eq!(check(name), Ok(()), "{name:?}");
        }
        let too_long = vec![b'n'; NAME_MAX + 1];
        for (name, status) in [
            (&b""[..], Status::Inval),
            (b".", Status::BadName),
            (b"..", Status::BadName),
            (b"/", Status::BadName),
            (b"../a", Status::BadName),
            (b"a/", Status::BadName),
            (b"a\0", Status::BadName),
            (&too_long, Status::NameTooLong),
        ] {
            assert_eq!(check(name), Err(status), "{name:?}");
        }
    }
}
