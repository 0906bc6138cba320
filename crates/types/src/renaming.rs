//! What becomes of the file that already has the new name of a rename.

/// How RENAME treats a file that has the new name, as the flags of renameat2(2) say.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Renaming {
    /// It loses the name, as by rename(2) and by RENAME of NFS (RFC 8881 §18.26).
    #[default]
    Replace,
    /// `RENAME_NOREPLACE`: the rename fails with `Exist`.
    NoReplace,
    /// `RENAME_EXCHANGE`: it gets the old name, and has to be there.
    Exchange,
}

impl Renaming {
    /// By the flags of renameat2(2); `None` for others and for both at once.
    pub const fn from_flags(flags: u32) -> Option<Self> {
        match flags {
            0 => Some(Renaming::Replace),
            1 => Some(Renaming::NoReplace),
            2 => Some(Renaming::Exchange),
            _ => None,
        }
    }

    /// The flags of renameat2(2).
    pub const fn flags(self) -> u32 {
        match self {
            Renaming::Replace => 0,
            Renaming::NoReplace => 1,
            Renaming::Exchange => 2,
        }
    }
}
