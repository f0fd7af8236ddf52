"""A report as PDF, for paper: weasyprint over a page of drawings. Loads weasyprint only when it is
asked to.
"""

from andrea.errors import UserError


def require_weasyprint() -> None:
    """Make sure that a PDF can be made.

    Raises:
        UserError: weasyprint, or what it needs of the system, is not there; with the command that
            installs it.
    """
    try:
        import weasyprint  # noqa: F401
    except ImportError as error:
        raise UserError(
            "--format pdf needs weasyprint, which is not installed: pip install 'andrea[pdf]'"
        ) from error
    except OSError as error:
        raise UserError(
            "--format pdf: weasyprint does not find Pango; install it "
            "(Debian: apt-get install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0; macOS: "
            "brew install pango)"
        ) from error


def render_pdf(page: str) -> bytes:
    """Return a printed page from HTML that holds everything it shows: nothing else is fetched.

    Args:
        page: HTML of `report.print.html.j2`.
    """
    import weasyprint

    document = weasyprint.HTML(
        string=page, url_fetcher=weasyprint.URLFetcher(allowed_protocols=["data"])
    )
    # The identifier is fixed so that a report is the same file whenever it is made.
    content: bytes = document.write_pdf(pdf_tags=True, pdf_identifier=b"andrea")
    return content
