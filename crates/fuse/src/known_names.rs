//! The table of names by which the kernel found a file.
//!
//! FUSE requests contain node ids and no paths. From the names of a file and of its parent directories, the mount
//! derives the path that the kernel walked. A file may have several names, and another client may have given some of
//! these names to other files. A request does not say which name the program used. So the mount keeps each name for as
//! long as the kernel may use it without a LOOKUP.

use bytes::Bytes;
use std::time::Duration;

/// Largest number of names that the mount keeps for one file.
const KEPT: usize = 4;

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KnownName {
    /// The inode number of the directory.
    pub(crate) dir: u64,
    /// The name in the directory.
    pub(crate) name: Bytes,
    /// When the kernel last received the name, in seconds since the mount began.
    last_sent: u32,
}

impl KnownName {
    fn is(&self, dir: u64, name: &[u8]) -> bool {
        self.dir == dir && *self.name == *name
    }
}

/// How long the kernel may use a cached name without another LOOKUP, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trusted(u32);

impl Trusted {
    /// Returns about twice `entry_valid`, the time for which the kernel caches names, because a request that used a
    /// cached name may be in flight for that long too.
    pub(crate) fn new(entry_valid: Duration) -> Self {
        let secs = entry_valid.as_secs().saturating_add(1).saturating_mul(2);
        Trusted(u32::try_from(secs).unwrap_or(u32::MAX))
    }
}

/// The names of one file, with the most recently found name at the front.
#[derive(Default, Debug)]
pub(crate) struct KnownNames(Vec<KnownName>);

impl KnownNames {
    /// Records that the kernel receives the given name for the file at the time `now`. If the file is a directory, the
    /// mount keeps only this name. Returns the names that the mount no longer keeps.
    pub(crate) fn found(
        &mut self,
        (dir, name): (u64, &[u8]),
        is_directory: bool,
        (now, trusted): (u32, Trusted),
    ) -> Vec<KnownName> {
        let place = match self.0.iter().position(|place| place.is(dir, name)) {
            Some(at) => KnownName { last_sent: now, ..self.0.remove(at) },
            None => KnownName { dir, name: Bytes::copy_from_slice(name), last_sent: now },
        };
        let (mut kept, mut dropped) = (Vec::with_capacity(self.0.len() + 1), Vec::new());
        kept.push(place);
        for older in self.0.drain(..) {
            let keeps = !is_directory && kept.len() < KEPT && now.saturating_sub(older.last_sent) <= trusted.0;
            if keeps { kept.push(older) } else { dropped.push(older) }
        }
        self.0 = kept;
        dropped
    }

    /// Records that the kernel receives a name again at the time `now`. Returns false, without a change, unless this
    /// is the only name that the mount keeps of the file.
    pub(crate) fn found_again(&mut self, (dir, name): (u64, &[u8]), now: u32) -> bool {
        let [only] = &mut self.0[..] else { return false };
        let again = only.is(dir, name);
        if again {
            only.last_sent = now;
        }
        again
    }

    /// Removes a name that the file no longer has. Returns the name if the mount kept it.
    pub(crate) fn lost(&mut self, dir: u64, name: &[u8]) -> Option<KnownName> {
        let at = self.0.iter().position(|place| place.is(dir, name))?;
        Some(self.0.remove(at))
    }

    /// Returns the name by which the kernel last found the file.
    pub(crate) fn last(&self) -> Option<&KnownName> {
        self.0.first()
    }

    /// Returns all names that the mount keeps of the file.
    pub(crate) fn all(&self) -> &[KnownName] {
        &self.0
    }

    /// Returns the name by which the kernel last found the file, and the other names of the file that the kernel may
    /// use at the time `now` without a LOOKUP.
    pub(crate) fn in_use(&self, now: u32, trusted: Trusted) -> impl Iterator<Item = &KnownName> {
        let is_new = move |place: &KnownName| now.saturating_sub(place.last_sent) <= trusted.0;
        self.0.iter().enumerate().filter(move |(at, place)| *at == 0 || is_new(place)).map(|(_, place)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUSTED: Trusted = Trusted(4);

    fn names<'a>(places: impl IntoIterator<Item = &'a KnownName>) -> Vec<&'a [u8]> {
        places.into_iter().map(|place| &*place.name).collect()
    }

    #[test]
    fn names_are_trusted_for_longer_than_the_kernel_caches_them() {
        assert_eq!(Trusted::new(Duration::from_secs(1)).0, 4);
        assert_eq!(Trusted::new(Duration::MAX).0, u32::MAX);
    }

    #[test]
    fn a_directory_has_only_its_latest_name() {
        let mut places = KnownNames::default();
        assert!(places.found((1, b"a"), true, (0, TRUSTED)).is_empty());
        assert!(places.found_again((1, b"a"), 1) && !places.found_again((2, b"a"), 1));
        assert_eq!(names(&places.found((2, b"b"), true, (1, TRUSTED))), [b"a"]);
        assert_eq!(names(places.all()), [b"b"]);
    }

    #[test]
    fn the_names_found_last_are_kept() {
        let mut places = KnownNames::default();
        for name in [b"a", b"b", b"c", b"d"] {
            assert!(places.found((1, name), false, (0, TRUSTED)).is_empty());
        }
        assert!(places.found((1, b"b"), false, (0, TRUSTED)).is_empty());
        assert_eq!(names(places.all()), [b"b", b"d", b"c", b"a"]);
        assert!(!places.found_again((1, b"b"), 0), "all other names may have expired");
        assert_eq!(names(&places.found((1, b"e"), false, (0, TRUSTED))), [b"a"]);
        assert_eq!(names(places.all()), [b"e", b"b", b"d", b"c"]);
        assert_eq!(places.lost(1, b"b").map(|place| place.name), Some(Bytes::from_static(b"b")));
        assert!(places.lost(1, b"b").is_none() && places.lost(2, b"e").is_none());
        assert_eq!(places.last().map(|place| &*place.name), Some(&b"e"[..]));
    }

    #[test]
    fn a_name_is_forgotten_when_the_kernel_would_ask_for_it_again() {
        let mut places = KnownNames::default();
        places.found((1, b"a"), false, (0, TRUSTED));
        places.found((1, b"b"), false, (2, TRUSTED));
        assert_eq!(names(places.in_use(4, TRUSTED)), [b"b", b"a"]);
        assert_eq!(names(places.in_use(5, TRUSTED)), [b"b"]);
        assert_eq!(names(places.in_use(50, TRUSTED)), [b"b"], "the latest name counts at any age");
        assert_eq!(names(&places.found((1, b"b"), false, (5, TRUSTED))), [b"a"]);
    }
}
