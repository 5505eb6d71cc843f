-- For pandoc: a book may show pictures from its own directory and from nowhere else.
--
-- Without this a book that says ![](/etc/passwd) gets that file packed into its EPUB, and ![](http://…) makes the
-- converter call out from inside your network. Such a picture becomes its own description.

local function is_inside(source)
  return not source:match("^[/\\]")       -- an absolute path
    and not source:match("^%a[%w+.-]*:")  -- file:, http:, data:
    and not ("/" .. source:gsub("%%2[eE]", "."):gsub("%%2[fF]", "/") .. "/"):match("[/\\]%.%.[/\\]")
    and not source:match("^%%2[fF]")
end

function Image(image)
  if not is_inside(image.src) then
    io.stderr:write("picture left out, it is not in the directory of the books: " .. image.src .. "\n")
    return image.caption
  end
end
