//! Rename modes, which say what a rename does if a file already has the new name.

/// What a rename does if a file already has the new name. The modes correspond to the flags of renameat2(2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Renaming {
    /// The existing file loses this name, as with rename(2) and with RENAME of NFS (RFC 8881 §18.26).
    #[default]
    Replace,
    /// `RENAME_NOREPLACE`: the rename fails with `Exist` if a file has the new name.
    NoReplace,
    /// `RENAME_EXCHANGE`: the two files exchange their names. The rename fails if no file has the new name.
    Exchange,
}

impl Renaming {
    /// Returns the mode for the flags of renameat2(2). Returns `None` if the flags contain both `RENAME_NOREPLACE` and
    /// `RENAME_EXCHANGE`, or any other flag.
    pub const fn from_flags(flags: u32) -> Option<Self> {
        match flags {
            0 => Some(Renaming::Replace),
            1 => Some(Renaming::NoReplace),
            2 => Some(Renaming::Exchange),
            _ => None,
        }
    }

    /// Returns the flags of renameat2(2) for this mode.
    pub const fn flags(self) -> u32 {
        match self {
            Renaming::Replace => 0,
            Renaming::NoReplace => 1,
            Renaming::Exchange => 2,
        }
    }
}
