//! Templates: texts with fields in them, such as `"customer-{customer}"`.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::{Error, Fields, Index, LitStr, Member, Result};

/// A text with placeholders, as it is written in an attribute.
#[derive(Clone)]
pub(crate) struct Template {
    /// For the location of errors.
    literal: LitStr,
    /// The text for `format!`, with positional placeholders: raw identifiers and keywords are no
    /// problem there.
    format: String,
    /// The names in the placeholders, in their order.
    names: Vec<String>,
}

impl Template {
    pub(crate) fn parse(literal: &LitStr) -> Result<Self> {
        Self::parse_part(&literal.value(), literal)
    }

    /// A template that is a part of a literal.
    pub(crate) fn parse_part(text: &str, literal: &LitStr) -> Result<Self> {
        let error = |message: String| Error::new(literal.span(), message);
        let (mut format, mut names) = (String::new(), Vec::new());
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            format.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                format.push_str(brace);
                format.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err(error("`}` without `{`: a brace itself is written `}}`".to_owned()));
            }
            let (placeholder, after) = rest
                .split_once('}')
                .ok_or_else(|| error("`{` without `}`: a brace itself is written `{{`".to_owned()))?;
            rest = after;
            let (name, spec) = match placeholder.split_once(':') {
                Some((name, spec)) => (name.trim(), format!(":{spec}")),
                None => (placeholder.trim(), String::new()),
            };
            if name.is_empty() {
                return Err(error("a placeholder needs the name of a field: `{field}`".to_owned()));
            }
            if spec.contains(['$', '{', '*']) {
                return Err(error(format!(
                    "`{{{placeholder}}}`: width and precision must be numbers, not arguments"
                )));
            }
            format.push_str(&format!("{{{}{spec}}}", names.len()));
            names.push(name.to_owned());
        }
        format.push_str(rest);
        Ok(Self { literal: literal.clone(), format, names })
    }

    pub(crate) fn span(&self) -> Span {
        self.literal.span()
    }

    /// An expression of type `String` over the fields of `self`. `owner` names the struct or the
    /// variant in errors.
    pub(crate) fn expression(&self, fields: &Fields, owner: &str) -> Result<TokenStream> {
        // The location of the literal, so that an error about a field without `Display` points at
        // it; and names as they are in the rest of the generated code.
        let span = self.span().resolved_at(Span::call_site());
        let members = self.names.iter().map(|name| self.member(name, fields, owner));
        let members = members.collect::<Result<Vec<_>>>()?;
        if members.is_empty() {
            let text = LitStr::new(&self.format.replace("{{", "{").replace("}}", "}"), span);
            return Ok(quote! { ::std::string::String::from(#text) });
        }
        let format = LitStr::new(&self.format, span);
        Ok(quote_spanned! {span=> ::std::format!(#format, #(&self.#members),*) })
    }

    fn member(&self, name: &str, fields: &Fields, owner: &str) -> Result<Member> {
        let mut known = Vec::new();
        for (index, field) in fields.iter().enumerate() {
            let field_name = match &field.ident {
                Some(ident) => ident.unraw().to_string(),
                None => index.to_string(),
            };
            if field_name == name {
                return Ok(match &field.ident {
                    Some(ident) => Member::Named(ident.clone()),
                    None => Member::Unnamed(Index::from(index)),
                });
            }
            known.push(format!("`{field_name}`"));
        }
        let known = if known.is_empty() {
            "it has no fields".to_owned()
        } else {
            format!("it has {}", known.join(", "))
        };
        Err(Error::new(self.span(), format!("{owner} has no field `{name}`: {known}")))
    }
}
