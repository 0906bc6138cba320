//! LENGTHS: queries of an iod to the mgr for file lengths. The iod sends a query when a client of the files layout
//! reads past the end of an object.

use types::ObjectId;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Capability, LENGTHS_MAX, put_object, take_object};

/// Arguments of LENGTHS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LengthsArgs {
    /// Capability for the whole store ([`super::STORE_OBJECT`]); needs the right ADMIN.
    pub cap: Capability,
    /// The mgr's answers to the file length queries in earlier LENGTHS replies of the iod.
    pub answers: Vec<Length>,
}

impl Xdr for LengthsArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.array(&self.answers, |out, answer| answer.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LengthsArgs { cap: Capability::decode(input)?, answers: input.array(LENGTHS_MAX, Length::decode)? })
    }
}

/// The mgr's answer to one file length query of an iod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Length {
    /// Number of the query to which this is the answer ([`LengthQuestion::number`]).
    pub number: u64,
    /// The length of the file and the smallest valid size of the object, both read by the mgr after it had received the
    /// query. `None` if the mgr cannot determine them without a request to an iod.
    pub length: Option<FileLength>,
}

/// The length of a file, and the smallest valid size of its object on one iod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileLength {
    /// Length of the file in bytes.
    pub file: u64,
    /// Smallest valid size, in bytes, of the file's object on the iod that sent the query. A shorter object has lost
    /// bytes.
    pub least: u64,
}

impl Xdr for Length {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.number);
        out.optional(self.length.as_ref(), |out, length| {
            out.u64(length.file);
            out.u64(length.least);
        });
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let number = input.u64()?;
        let length = input.optional(|input| Ok(FileLength { file: input.u64()?, least: input.u64()? }))?;
        Ok(Length { number, length })
    }
}

/// Result of LENGTHS. If the iod needs no file length for some time, it sends a reply without queries.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LengthsReply {
    /// Queries for file lengths, which the mgr must answer in the arguments of its next LENGTHS call.
    pub asked: Vec<LengthQuestion>,
}

impl Xdr for LengthsReply {
    fn encode(&self, out: &mut Writer) {
        out.array(&self.asked, |out, question| question.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LengthsReply { asked: input.array(LENGTHS_MAX, LengthQuestion::decode)? })
    }
}

/// A query of an iod for the length of the file to which an object belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LengthQuestion {
    /// Number of the query. The iod uses each number only once before it restarts.
    pub number: u64,
    /// The object whose file length the iod needs.
    pub object: ObjectId,
}

impl Xdr for LengthQuestion {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.number);
        put_object(out, self.object);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LengthQuestion { number: input.u64()?, object: take_object(input)? })
    }
}
